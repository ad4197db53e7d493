"""Reading: what torch and transformers compute comes out the same, and little is read for it."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import made
import make_fixtures
import numpy as np
import pytest

from attnflow import InputError, checkpoints
from attnflow.checkpoints.tensors import Damage, TensorFile
from attnflow.checkpoints.weights import encode_llama2c, read_llama2c_tokenizer

SHARED = Path(__file__).parents[3] / "shared" / "data"


def shared(name: str) -> Path:
    if not (SHARED / name).exists():
        if os.environ.get("CI") == "true":
            pytest.fail(f"{SHARED / name} must be there")
        pytest.skip("the shared data are not here")
    return SHARED / name


@pytest.mark.parametrize("kind", make_fixtures.KINDS)
def test_forms_rows_and_logits_are_those_of_transformers(kind):
    folder = made.FIXTURES / kind
    with np.load(folder / "torch.npz") as found:
        error = make_fixtures.compare(folder, dict(found))
    assert error["logits"] < 1e-5
    assert error["rows"] < 1e-5
    assert error["qk"] < 1e-6
    assert error["ov"] < 1e-6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["neox", "gpt2", "llama-tied"])
def test_the_same_live_where_torch_is_installed(tmp_path, kind):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    error = make_fixtures.compare(tmp_path, make_fixtures.make(kind, 11, tmp_path))
    assert max(error.values()) < 1e-5


def test_stories260k_scores_real_stories():
    """1.411 nats per token over the 40 stories after the first, cut, one (15,049 tokens)."""
    folder = shared("stories260K")
    text = gzip.decompress(shared("tinystories/tinystories_sample_5M.txt.gz").read_bytes()).decode()
    series = checkpoints.open(folder)
    model = series["stories260K"]
    pieces, scores = read_llama2c_tokenizer(folder / "tok512.bin")
    total, count = 0.0, 0
    for story in text.split("<|endoftext|>")[1:41]:
        ids = np.array([1, *encode_llama2c(story.strip(), pieces, scores)])[:512]
        logits = model.logits(ids[:-1])
        logits -= logits.max(axis=1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        total -= logs[np.arange(len(ids) - 1), ids[1:]].sum()
        count += len(ids) - 1
    assert count == 15_049
    assert total / count == pytest.approx(1.411, abs=5e-4)


def test_grouped_heads_share_keys():
    model = checkpoints.open(made.FIXTURES / "llama")["llama"]
    raw = TensorFile(made.FIXTURES / "llama" / "model.safetensors")
    own = "model.layers.1.self_attn."
    q, k = (raw.read(f"{own}{p}_proj.weight") for p in "qk")
    gain = np.diag(raw.read("model.layers.1.input_layernorm.weight"))
    size, head = 2, 4  # 6 heads of 2, two of keys: head 4 reads the second
    want = gain @ q[head * size : (head + 1) * size].T @ k[size : 2 * size] @ gain
    np.testing.assert_allclose(model.qk(1, head), want, atol=1e-12)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_numbers_are_read_as_they_are_stored(tmp_path, dtype):
    values = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    path = tmp_path / "one.safetensors"
    path.write_bytes(made.file_bytes({"w": values}, dtype))
    found = TensorFile(path).read("w")
    assert found.dtype == np.float64
    bits = {"F32": 24, "F16": 11, "BF16": 8}[dtype]
    np.testing.assert_allclose(found, values, rtol=2.0 ** (1 - bits))
    again = tmp_path / "two.safetensors"
    again.write_bytes(made.file_bytes({"w": found}, dtype))
    np.testing.assert_array_equal(TensorFile(again).read("w"), found)


def test_one_tensor_of_a_large_file_is_read_alone(tmp_path):
    """A sparse file of 2 GB; what is read is counted by the reader and by the system."""
    path, rows = tmp_path / "large.safetensors", 2**29 - 2**18
    header = {
        "large": {"dtype": "F32", "shape": [rows], "data_offsets": [0, 4 * rows]},
        "small": {"dtype": "F32", "shape": [2**18], "data_offsets": [4 * rows, 2**31]},
    }
    raw = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + 2**31)
    before = _read_by_system()
    opened = TensorFile(path)
    assert opened.read("small").shape == (2**18,)
    assert opened.bytes_read == 8 + len(raw) + 2**20
    assert _read_by_system() - before < 2**20 + 1_000_000


def _read_by_system() -> int:
    try:
        text = Path("/proc/self/io").read_text()
    except OSError:
        return 0
    return int(text.splitlines()[0].split()[1])


def test_gpt2_without_its_prefix_and_with_mask_buffers(tmp_path):
    raw = TensorFile(made.FIXTURES / "gpt2" / "model.safetensors")
    bare = {n.removeprefix("transformer."): raw.read(n) for n in raw.entries}
    bare["h.0.attn.bias"] = np.tril(np.ones((1, 1, 16, 16)))
    bare["h.0.attn.masked_bias"] = np.array(-1e4)
    made.write_step(tmp_path / "step5", bare, made.config_of("gpt2"), "F32")
    ids = np.arange(9)
    want = checkpoints.open(made.FIXTURES / "gpt2")["gpt2"].logits(ids)
    np.testing.assert_allclose(checkpoints.open(tmp_path)[5].logits(ids), want, atol=1e-12)


def test_old_and_new_keys_of_gpt_neox_say_the_same(tmp_path):
    old = made.config_of("neox")
    rope = old.pop("rope_parameters")
    old |= {"rotary_pct": rope["partial_rotary_factor"], "rotary_emb_base": rope["rope_theta"]}
    raw = TensorFile(made.FIXTURES / "neox" / "model.safetensors")
    made.write_step(tmp_path / "step0", {n: raw.read(n) for n in raw}, old, "F32")
    ids = np.arange(8)
    want = checkpoints.open(made.FIXTURES / "neox")["neox"].logits(ids)
    np.testing.assert_allclose(checkpoints.open(tmp_path)[0].logits(ids), want, atol=1e-12)


def test_shards_and_a_hub_cache_give_the_same_model(tmp_path):
    series = made.write_series(tmp_path / "plain", "llama")
    cache = made.write_series(tmp_path / "cache", "llama", shards=3, hub=True)
    ids = np.arange(6)
    one, other = checkpoints.open(series)[32], checkpoints.open(cache)[32]
    np.testing.assert_array_equal(one.logits(ids), other.logits(ids))
    snapshot = cache / "snapshots" / f"{32:040x}"  # a snapshot itself may use the cache's blobs
    alone = checkpoints.open(snapshot)
    np.testing.assert_array_equal(alone[alone.steps[0]].logits(ids), one.logits(ids))
    assert checkpoints.open([series / "step0", series / "step4"]).steps == [0, 4]


MAPPING = {
    "layers": 2,
    "heads": 2,
    "width": 4,
    "vocabulary": 5,
    "stored": "in-out",
    "scaled": False,
    "tensors": {
        "embedding": "E",
        "query": "W_Q.{layer}",
        "key": "W_K.{layer}",
        "value": "W_V.{layer}",
        "out": "W_O.{layer}",
        "output": "U",
    },
}


def test_an_attention_only_model_by_a_mapping(tmp_path):
    rng = np.random.default_rng(0)
    made_up = {"E": rng.standard_normal((5, 4)), "U": rng.standard_normal((4, 5))}
    for l in range(2):
        made_up |= {f"W_{p}.{l}": rng.standard_normal((4, 4)) for p in "QKVO"}
    made_up = {name: value.astype(np.float32) for name, value in made_up.items()}
    (tmp_path / "step_3.safetensors").write_bytes(made.file_bytes(made_up))
    (tmp_path / "mapping.json").write_text(json.dumps(MAPPING))
    model = checkpoints.open(tmp_path)[3]
    ids = np.array([0, 3, 1])
    x = made_up["E"][ids].astype(float)
    for l in range(2):
        q, k, v, o = (made_up[f"W_{p}.{l}"].astype(float) for p in "QKVO")
        add = np.zeros_like(x)
        for h in (slice(0, 2), slice(2, 4)):
            for t in range(3):
                s = np.exp([x[t] @ q[:, h] @ k[:, h].T @ x[j] for j in range(t + 1)])
                add[t] += (s / s.sum()) @ x[: t + 1] @ v[:, h] @ o[h]
        x = x + add
    np.testing.assert_allclose(model.logits(ids), x @ made_up["U"], atol=1e-10)
    extra = {**made_up, "mlp": made_up["E"]}
    (tmp_path / "step_3.safetensors").write_bytes(made.file_bytes(extra))
    with pytest.raises(InputError, match="leaves out mlp"):
        checkpoints.open(tmp_path)[3].logits(ids)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer": 3}, "'layer' is not one of"),
        ({"norm": "batch"}, "norm is layer, rms or none"),
        ({"heads": 3}, "does not divide"),
        ({"tensors": {"embedding": "E"}}, "tensors.query is missing"),
    ],
)
def test_a_mapping_that_says_nonsense_is_refused(tmp_path, change, words):
    (tmp_path / "step_3.safetensors").write_bytes(made.file_bytes({"E": np.ones((5, 4))}))
    (tmp_path / "mapping.json").write_text(json.dumps({**MAPPING, **change}))
    with pytest.raises(InputError, match=words):
        checkpoints.open(tmp_path)


def test_bad_questions_get_a_sentence(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        checkpoints.open(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no checkpoint"):
        checkpoints.open(tmp_path)
    series = checkpoints.open(made.write_series(tmp_path, "gpt2"))
    with pytest.raises(InputError, match="5 is not in the series"):
        series[5]
    with pytest.raises(InputError, match="from 0 to 1"):
        series[4].qk(2, 0)
    with pytest.raises(InputError, match="pre, mid or post"):
        series[4].rows(0, at="end")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="token ids"):
        series[4].logits(np.array([99]))
    with pytest.raises(InputError, match="the model has 16"):
        series[4].logits(np.zeros(17, int))


def test_a_torch_file_is_read_only_as_plain_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    raw = TensorFile(made.FIXTURES / "gpt2" / "model.safetensors")
    step = tmp_path / "step0"
    step.mkdir()
    (step / "config.json").write_text(json.dumps(made.config_of("gpt2")))
    tensors = {n: torch.tensor(raw.read(n), dtype=torch.float32) for n in raw}
    torch.save(tensors, step / "pytorch_model.bin")
    ids = np.arange(5)
    want = checkpoints.open(made.FIXTURES / "gpt2")["gpt2"].logits(ids)
    np.testing.assert_allclose(checkpoints.open(tmp_path)[0].logits(ids), want, atol=1e-12)
    assert checkpoints.audit(checkpoints.open(tmp_path)).verdict(0) == "flag"
    marker = tmp_path / "ran"
    torch.save({"w": _Malicious(marker)}, step / "pytorch_model.bin")
    with pytest.raises(InputError, match="not a file of plain tensors"):
        checkpoints.open(tmp_path)[0]
    assert not marker.exists()


class _Malicious:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "shard.bin"])
def test_an_index_names_only_shards_inside(tmp_path, name):
    step = tmp_path / "series" / "step0"
    step.mkdir(parents=True)
    (tmp_path / "outside.safetensors").write_bytes(made.file_bytes({"w": np.ones(2)}))
    (tmp_path / "series" / "outside.safetensors").symlink_to(tmp_path / "outside.safetensors")
    (step / "config.json").write_text(json.dumps(made.config_of("gpt2")))
    index = {"weight_map": {"w": name}}
    (step / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Damage):
        checkpoints.open(tmp_path / "series").place(0).weights()
