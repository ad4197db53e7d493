"""Leading terms: the first weights of an attention language model in closed form."""
