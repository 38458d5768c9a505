"""Architectures whose memory layout has been checked, and in what they differ from the usual.

Pipeline support was read from the classes of vLLM 0.33.0 (SupportsPP) for every entry; earlier
versions are noted only where an issue shows a limit.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """expert_intermediate: the experts' width is intermediate_size itself (Mixtral's form).
    tied: default of tie_word_embeddings where config.json leaves it out. window_pattern: every
    n-th layer is full attention, the others see a window; 0 = none. output_gate: the query
    projection carries a gate of the same size. pipeline_unknown_before: PP is refused by vLLM up to
    the first version, and not checked between the two."""

    multimodal: bool = False
    expert_intermediate: bool = False
    tied: bool = False
    window_pattern: int = 0
    output_gate: bool = False
    gated_mlp: bool = True
    cache_unknown: bool = False
    uneven_experts: bool = True
    pipeline_refused_up_to: str | None = None
    pipeline_known_from: str | None = None


_PLAIN = Architecture()
_IMAGES = Architecture(multimodal=True)
_LATE_PIPELINE = Architecture(pipeline_refused_up_to="0.6.6.post1", pipeline_known_from="0.8.0")

_KNOWN: dict[str, Architecture] = {
    "LlamaForCausalLM": _PLAIN,
    "MistralForCausalLM": _PLAIN,
    "Mistral3ForConditionalGeneration": _IMAGES,
    "MixtralForCausalLM": Architecture(expert_intermediate=True),
    "Qwen2ForCausalLM": _PLAIN,
    "Qwen2MoeForCausalLM": _PLAIN,
    "Qwen3ForCausalLM": _PLAIN,
    "Qwen3MoeForCausalLM": _PLAIN,
    "Qwen3NextForCausalLM": Architecture(output_gate=True),
    "Qwen3_5ForConditionalGeneration": Architecture(multimodal=True, output_gate=True),
    "Qwen3_5MoeForConditionalGeneration": Architecture(multimodal=True, output_gate=True),
    "Qwen2VLForConditionalGeneration": _IMAGES,
    "Qwen2_5_VLForConditionalGeneration": _IMAGES,
    "Qwen3VLForConditionalGeneration": _IMAGES,
    "Qwen3VLMoeForConditionalGeneration": _IMAGES,
    "Qwen3OmniMoeForConditionalGeneration": _IMAGES,
    "LlavaForConditionalGeneration": _IMAGES,
    "DeepseekV2ForCausalLM": _LATE_PIPELINE,
    "DeepseekV3ForCausalLM": _LATE_PIPELINE,
    "DeepseekV32ForCausalLM": _PLAIN,
    "DeepseekV4ForCausalLM": Architecture(cache_unknown=True, uneven_experts=False),
    "GlmMoeDsaForCausalLM": _PLAIN,
    "Glm4MoeForCausalLM": _PLAIN,
    "GptOssForCausalLM": Architecture(expert_intermediate=True, window_pattern=2),
    "Gemma2ForCausalLM": Architecture(tied=True, window_pattern=2),
    "Gemma3ForCausalLM": Architecture(tied=True, window_pattern=6),
    "Gemma3ForConditionalGeneration": Architecture(multimodal=True, tied=True, window_pattern=6),
    "Gemma4ForConditionalGeneration": Architecture(multimodal=True, tied=True, window_pattern=6),
    "MiniMaxM2ForCausalLM": Architecture(expert_intermediate=True),
    "Phi3ForCausalLM": _PLAIN,
    "GPT2LMHeadModel": Architecture(tied=True, gated_mlp=False),
}


def architecture_of(name: str) -> Architecture | None:
    """None for one that is not known here."""
    return _KNOWN.get(name)
