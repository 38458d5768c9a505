"""Make a tiny random Qwen3-MoE: `TOOL_PYTHON -m lab.models.tiny_moe DIRECTORY`.

It answers nonsense, quickly. Its layout is a real one (experts tensor by tensor, as Qwen publishes
them; an index; a tokenizer; a chat template), and its bytes are the same on every machine: weights
come from SHAKE-128 of their names, the tokenizer is trained on text that is written here.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from typing import Any

from lab.models.safetensors_file import Tensor, write_json, write_model

SHARDS = 3
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "decoder_sparse_step": 1,
    "eos_token_id": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "max_window_layers": 2,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 1024,
}
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
# Enough different words for a vocabulary of about a thousand entries.
WORDS = """
about above across action active address after again against agree almost along already also
always among amount animal another answer anyone appear apple area argue around arrive asleep
attack author autumn balance basket beautiful because become before begin behind believe below
beside between beyond bicycle blanket border borrow bottom bottle branch bread breakfast bridge
bright bring brother build butter button calendar camera candle capital captain careful carry
castle center certain chair change chapter cheese children choose circle circus clean clever climb
clock cloud coffee collect colour common company compare complete computer consider contain
continue control copper corner correct cottage cotton country courage cousin cover create cross
culture curtain custom dance danger daughter decide deliver depend desert describe design develop
diamond different difficult dinner direct discover distance divide doctor dollar double dragon
drawing dream dress during early earth easily eastern education effect eight electric elephant
empty energy engine enough enter escape evening example excellent exercise expect experience
explain family famous farmer father favour feather figure finger finish flower follow foreign
forest forget fortune forward freedom friend furniture future garden gather general gentle giant
ginger glass golden government grammar grandfather grass ground guess guitar hammer handle happen
harbour harvest healthy heavy height hidden history holiday honest horse hospital hundred hungry
hunter husband imagine important improve include increase indeed industry inside instead interest
invite island jacket journey judge kitchen knife knowledge ladder language large laugh leader
learn leather length lesson letter level library listen little lonely machine manage market master
matter measure medicine member memory message metal middle million minute mirror mistake modern
moment money monkey morning mother mountain music nation nature necessary needle neighbour never
night normal northern nothing notice number object observe ocean office often orange order
ordinary original outside owner paint palace paper parent particular partner passage pattern peace
pencil people perfect perhaps person picture pilot planet plant plastic please pocket poem police
position possible powder practice prepare present pretty prevent prince problem produce program
promise protect provide public purple purpose quality quarter question quick quiet rabbit railway
rather reach ready reason receive recent record regular remain remember repair repeat reply report
result return ribbon river rough round safety sailor salad science season second secret sentence
separate serious servant several shadow shape sharp shelter shine shoulder silence silver similar
simple single sister slowly smooth soldier special spirit spring square station steady stone storm
story strange stream street strong student sudden sugar summer supper surface surprise sweet
system table teacher temple theatre thirsty thought thousand thunder ticket together tomorrow
tongue travel treasure trouble truth twelve umbrella uncle under understand uniform useful valley
value various vegetable village visit voice wagon water weather welcome western whisper window
winter wisdom without wonder wooden world worry yellow yesterday young
"""


def random_values(name: str, shape: tuple[int, ...], deviation: float) -> Any:
    """float32 of `shape`, uniform with the given standard deviation, a function of `name` only."""
    numpy: Any = importlib.import_module("numpy")
    count = 1
    for length in shape:
        count *= length
    raw = hashlib.shake_128(name.encode()).digest(2 * count)
    uniform = numpy.frombuffer(raw, "<u2").astype("<f4") / 65535.0 * 2.0 - 1.0
    return (uniform * (deviation * 3.0**0.5)).astype("<f4").reshape(shape)


def weight(name: str, *shape: int) -> Tensor:
    if name.endswith("norm.weight"):
        return Tensor(name, shape, lambda: importlib.import_module("numpy").ones(shape, "<f4"))
    return Tensor(name, shape, lambda: random_values(name, shape, CONFIG["initializer_range"]))


def weights() -> list[Tensor]:
    """Every tensor of Qwen3MoeForCausalLM, in the order of the layers."""
    hidden, head = CONFIG["hidden_size"], CONFIG["head_dim"]
    query, key = CONFIG["num_attention_heads"] * head, CONFIG["num_key_value_heads"] * head
    inner = CONFIG["moe_intermediate_size"]
    tensors = [weight("model.embed_tokens.weight", CONFIG["vocab_size"], hidden)]
    for number in range(CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        tensors += [
            weight(f"{layer}.input_layernorm.weight", hidden),
            weight(f"{layer}.self_attn.q_proj.weight", query, hidden),
            weight(f"{layer}.self_attn.k_proj.weight", key, hidden),
            weight(f"{layer}.self_attn.v_proj.weight", key, hidden),
            weight(f"{layer}.self_attn.o_proj.weight", hidden, query),
            weight(f"{layer}.self_attn.q_norm.weight", head),
            weight(f"{layer}.self_attn.k_norm.weight", head),
            weight(f"{layer}.post_attention_layernorm.weight", hidden),
            weight(f"{layer}.mlp.gate.weight", CONFIG["num_experts"], hidden),
        ]
        for expert in range(CONFIG["num_experts"]):
            place = f"{layer}.mlp.experts.{expert}"
            tensors += [
                weight(f"{place}.gate_proj.weight", inner, hidden),
                weight(f"{place}.up_proj.weight", inner, hidden),
                weight(f"{place}.down_proj.weight", hidden, inner),
            ]
    tensors += [
        weight("model.norm.weight", hidden),
        weight("lm_head.weight", CONFIG["vocab_size"], hidden),
    ]
    return tensors


def training_text() -> list[str]:
    """Sentences of the words, shuffled the same way every time."""
    order = sorted(WORDS.split(), key=lambda word: hashlib.sha256(word.encode()).digest())
    return [" ".join(order[start : start + 12]) + "." for start in range(0, len(order), 4)]


def write_tokenizer(directory: Path) -> None:
    """tokenizer.json (byte-level BPE), tokenizer_config.json with the chat template."""
    tokenizers: Any = importlib.import_module("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "add_prefix_space": False,
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": CONFIG["max_position_embeddings"],
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    write_json(directory / "tokenizer_config.json", tokenizer_config)
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def make(directory: Path) -> None:
    """Fill the empty `directory` with the whole model."""
    write_json(directory / "config.json", CONFIG)
    write_json(
        directory / "generation_config.json",
        {"bos_token_id": 0, "eos_token_id": [2], "pad_token_id": 0, "do_sample": True},
    )
    write_tokenizer(directory)
    write_model(directory, weights(), SHARDS)
    (directory / "README.md").write_text(
        "# tiny-qwen3-moe\n\nRandom weights, for tests only: it answers nonsense.\n"
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]))
