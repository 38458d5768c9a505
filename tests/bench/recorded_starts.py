"""vLLM start-ups that people published, as planning sees them.

The rows are not part of this project: they lie in the directory that $CORPUS names (kv_logs.tsv and
model_configs/). Here is only how a row becomes a model's shape, a GPU and engine.args, and which
rows do not say enough for what.
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.facts.hardware import Gpu
from pyinfra_deploy.planning.model_config import read_model
from pyinfra_deploy.planning.model_shape import ModelShape, Weights

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
# Published sizes of models that occur in the rows without a configuration beside them.
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.8-Flash-Next-FP8": {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "num_hidden_layers": 48,
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 640,
        "vocab_size": 248320,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    },
    "Qwen/Qwen1.5-14B-Chat": {
        "architectures": ["Qwen2ForCausalLM"],
        "num_hidden_layers": 40,
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "intermediate_size": 13696,
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
    },
    "Qwen/Qwen1.5-72B-Chat": {
        "architectures": ["Qwen2ForCausalLM"],
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
    },
    "Qwen-7B-QAnything": {
        "architectures": ["QWenLMHeadModel"],
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
    },
    "gpt2-xl": {
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": 48,
        "n_embd": 1600,
        "n_head": 25,
        "vocab_size": 50257,
        "n_positions": 1024,
    },
    "deepseek-ai/deepseek-coder-33b-instruct": {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 62,
        "hidden_size": 7168,
        "num_attention_heads": 56,
        "num_key_value_heads": 8,
        "intermediate_size": 19200,
        "vocab_size": 32256,
        "max_position_embeddings": 16384,
    },
    "LLaMA 33B": {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 60,
        "hidden_size": 6656,
        "num_attention_heads": 52,
        "intermediate_size": 17920,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
}


@dataclass(frozen=True)
class Start:
    """One row. shape: None where no configuration of the model is there. exact: it is the model's
    own, not that of the model it was made from. own_weights: the size of the weights was taken from
    the same log that the estimate is compared with."""

    id: str
    row: dict[str, str]
    shape: ModelShape | None
    exact: bool
    own_weights: bool = False

    def __getattr__(self, name: str) -> str:
        return self.row[name]

    @property
    def failed(self) -> bool:
        return self.row["outcome"].startswith("failed")

    @property
    def version(self) -> str | None:
        text = self.row["vllm_version"]
        match = re.search(r"(\d+\.\d+)(?:\.(\d+))?((?:rc|\.post|\.dev)[0-9a-z.]*)?", text)
        if not match:
            return None
        return f"{match[1]}.{match[2] or 0}{match[3] or ''}".rstrip(".")

    @property
    def gpu(self) -> Gpu | None:
        """None where neither the card nor its memory is known."""
        mib = self.row["gpu_mem_total_mib"]
        if not mib:
            return None
        return Gpu(0, self.row["gpu_type"], memory_total_mib=int(mib))

    @property
    def available(self) -> tuple[float, ...]:
        """Bytes for the KV cache, of each worker that said so."""
        text = self.row["avail_kv_gib"]
        return tuple(float(one) * GIB for one in text.split(";")) if text else ()

    @property
    def tokens(self) -> tuple[int, ...]:
        text = self.row["kv_tokens"]
        return tuple(int(one) for one in text.split(";")) if text else ()

    @property
    def tensor(self) -> int:
        return int(self.row["tp"] or 1)

    def args(self) -> dict[str, Any]:
        row = self.row
        found: dict[str, Any] = {"tensor-parallel-size": self.tensor}
        if int(row["pp"] or 1) > 1:
            found["pipeline-parallel-size"] = int(row["pp"])
        if int(row["dp"] or 1) > 1:
            found["data-parallel-size"] = int(row["dp"])
        if row["ep"] == "yes":
            found["enable-expert-parallel"] = True
        if row["max_model_len"].isdigit():
            found["max-model-len"] = int(row["max_model_len"])
        if match := re.search(r"0?\.\d+", row["gpu_mem_util"]):
            found["gpu-memory-utilization"] = float(match[0])
        if row["kv_cache_dtype"] not in ("", "auto"):
            found["kv-cache-dtype"] = row["kv_cache_dtype"]
        for column, key in (
            ("max_num_batched_tokens", "max-num-batched-tokens"),
            ("max_num_seqs", "max-num-seqs"),
        ):
            if row[column].isdigit():
                found[key] = int(row[column])
        if row["enforce_eager"] == "True":
            found["enforce-eager"] = True
        if speculation := _speculation(row["spec_decode"]):
            found["speculative-config"] = speculation
        if "pooling" in row["notes"]:
            found["runner"] = "pooling"
        if match := re.search(r"decode_context_parallel_size=(\d+)", row["notes"]):
            found["decode-context-parallel-size"] = int(match[1])
        if "online fp8" in row["notes"]:
            found["quantization"] = "fp8"
        return found


def _speculation(text: str) -> dict[str, Any] | None:
    if not text:
        return None
    tokens = re.search(r"num_speculative_tokens: (\d+)|mtp (\d+)", text)
    method = "mtp" if "mtp" in text else ("dflash" if "flash" in text.lower() else text.split()[0])
    count = int(tokens[1] or tokens[2]) if tokens else 1
    return {"method": method, "num_speculative_tokens": count}


def read_starts(corpus: Path) -> list[Start]:
    configs, exact = _configurations(corpus / "model_configs")
    with (corpus / "kv_logs.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [
        _start(row, configs.get(row["id"]), exact.get(row["id"], False), corpus) for row in rows
    ]


def _start(row: dict[str, str], name: str | None, exact: bool, corpus: Path) -> Start:
    shape, own_weights = None, False
    if name is not None:
        shape = shape_of(corpus / "model_configs" / name)
    elif row["model"] in PUBLISHED:
        shape, exact = read_model(PUBLISHED[row["model"]]).shape, True
    if shape is not None and row["weights_gib_per_gpu"] and (not exact or _unsized(shape)):
        # A repack: its index would tell its size, which here only the log does.
        sizes = [float(one) for one in row["weights_gib_per_gpu"].split(";")]
        if "online" not in row["notes"]:
            total = round(max(sizes) * GIB * int(row["tp"] or 1))
            shape, own_weights = replace(shape, weights=Weights(total, "listing")), True
    return Start(row["id"], row, shape, exact, own_weights)


def _unsized(shape: ModelShape) -> bool:
    """A shape from which no size can be counted: a dimension is missing."""
    return shape.vocab is None or (shape.intermediate is None and shape.experts is None)


def shape_of(path: Path) -> ModelShape | None:
    """The shape of one file of model_configs/, which is a summary and not quite a config.json."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    config = {key: value for key, value in raw.items() if not key.startswith("_")}
    if not raw.get("_head_dim_explicit"):
        config.pop("head_dim", None)
    layers = config.get("layer_types")
    if isinstance(layers, str):
        config.pop("layer_types")
        if match := re.match(r"full_attention at ([0-9,]+);", layers):
            full = {int(one) for one in match[1].split(",")}
            config["layer_types"] = [
                "full_attention" if layer in full else "sliding_attention"
                for layer in range(config["num_hidden_layers"])
            ]
    listing = raw.get("_weights_total_bytes")
    index = {"metadata": {"total_size": listing}, "weight_map": {}} if listing else None
    return read_model(config, index).shape


def _configurations(directory: Path) -> tuple[dict[str, str], dict[str, bool]]:
    files, exact = {}, {}
    with (directory / "INDEX.tsv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file, delimiter="\t"):
            if line["config_file"] == "NOT FOUND":
                continue
            for one in line["rows"].split(","):
                files[one] = line["config_file"]
                exact[one] = line["exact or shape only"] == "exact"
    return files, exact
