"""Transformers provably learn two-mixture of linear classification via gradient flow."""
