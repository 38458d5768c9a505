"""Fitness before live, with a stand-in for transformers in a real process: asked once for a model
and a runtime, and what is not fit switches nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import golive, release
from fleet_host.errors import HostError
from fleet_host.status import Progress

from tests.fakes.proof_host import proof_host

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.proof_host import ProofHost

__all__ = ["proof_host"]

# As much of transformers as is asked for: tokens are characters, the first two are special. How it
# behaves is in the model's tokenizer.json.
TRANSFORMERS = r"""
import json, pathlib, time
__version__ = "standin"

class AutoTokenizer:
    unk_token_id, all_special_ids, added_tokens_decoder = None, [0, 1], {}
    eos_token, eos_token_id = "<end>", 1

    @classmethod
    def from_pretrained(cls, place, trust_remote_code, local_files_only):
        assert local_files_only is True
        made = cls()
        made.how = json.loads((pathlib.Path(place) / "tokenizer.json").read_text())
        made.how["trusted"] = trust_remote_code
        while made.how.get("hangs"):
            time.sleep(0.02)
        if made.how.get("code") and not trust_remote_code:
            raise ValueError("set trust_remote_code=True")
        made.chat_template = "a template"
        return made

    def get_vocab(self):
        return {"<begin>": 0, "<end>": 1, "a": 2}

    def encode(self, text, add_special_tokens):
        return [ord(one) for one in text]

    def decode(self, ids, skip_special_tokens, clean_up_tokenization_spaces):
        return "".join(map(chr, ids)).replace(self.how.get("loses", "\0"), "")

    def apply_chat_template(self, messages, tokenize, add_generation_prompt, **more):
        kept = messages[-1:] if self.how.get("drops system") else messages
        return more.get("chat_template", "") + " ".join(one["content"] for one in kept)
"""
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 3, "eos_token_id": 1}


class Examined:
    """A host whose runtime has the stand-in, and whose model behaves as told."""

    def __init__(self, host: ProofHost) -> None:
        self.host = host
        self.model = host.llm_root / "models/o--m/master"
        (host.llm_root / "runtimes/vllm/site/transformers.py").write_text(TRANSFORMERS)
        self.behaves()

    def behaves(self, **how: Any) -> None:
        (self.model / "config.json").write_text(json.dumps(CONFIG))
        (self.model / "tokenizer.json").write_text(json.dumps(how))
        (self.model / "tokenizer_config.json").write_text("{}")

    def stage(self, identity: str, model_digest: str = "d1", runtime_digest: str = "r1") -> None:
        request = self.host.release_request(identity)
        request["release"] |= {"model_digest": model_digest, "runtime_digest": runtime_digest}
        release.stage(request)

    def go(self, identity: str, **fitness: Any) -> dict[str, Any]:
        asked = {"timeout_seconds": 20, **fitness}
        return golive.run(self.host.golive_spec(identity, fitness=asked), Progress(None))

    def refused(self, identity: str, **fitness: Any) -> HostError:
        with pytest.raises(HostError) as caught:
            self.go(identity, **fitness)
        return caught.value

    def record(self) -> dict[str, Any]:
        path = self.host.llm_root / "state/fitness/o--m--master--vllm.json"
        document: dict[str, Any] = json.loads(path.read_text())
        return document

    def events(self) -> list[dict[str, Any]]:
        lines = (self.host.llm_root / "state/events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def examined(proof_host: ProofHost) -> Examined:
    return Examined(proof_host)


def test_a_fit_model_goes_live_and_is_not_asked_about_again(examined: Examined) -> None:
    examined.stage("r1")
    assert examined.go("r1")["changed"] is True
    record = examined.record()
    assert record["state"] == "passed"
    assert record["seen"]["transformers"] == "standin"
    assert record["depends_on"]["model_digest"] == "d1"
    kinds = [event["what"] for event in examined.events()]
    assert kinds[-2:] == ["fitness passed", "went live"]
    assert examined.events()[-2]["model"] == "o--m/master"
    # Another release with other arguments, of the same model and runtime.
    examined.stage("r2")
    examined.go("r2")
    assert examined.host.proofs() == 1
    assert not (examined.host.home / "candidate").exists()


@pytest.mark.parametrize(
    "other",
    [{"model_digest": "d2"}, {"runtime_digest": "r2"}],
)
def test_another_model_or_runtime_is_examined(examined: Examined, other: dict[str, str]) -> None:
    examined.stage("r1")
    examined.go("r1")
    examined.stage("r2", **other)
    examined.go("r2")
    assert examined.host.proofs() == 2


def test_other_settings_about_it_ask_again(examined: Examined, tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    given: dict[str, Any] = {"chat_template": str(template)}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("", {}),
        ("one ", given),
        ("two ", given),
        ("two ", {**given, "tools": True}),
        ("two ", {**given, "tools": True, "trust_remote_code": True}),
    ]
    for number, (content, fitness) in enumerate(cases, 1):
        template.write_text(content)
        examined.stage(f"r{number}")
        examined.go(f"r{number}", **fitness)
        assert examined.host.proofs() == number


def test_what_is_not_fit_switches_nothing(examined: Examined) -> None:
    examined.stage("r1")
    examined.go("r1")
    before = examined.host.calls()
    examined.behaves(loses="\u20ac")
    examined.stage("r2", model_digest="d2")
    error = examined.refused("r2")
    assert "release r1 stays live: the model is not fit to be served" in error.what
    assert "does not give currency signs back" in error.what
    assert "U+20AC became U+0032" in error.why
    assert "model.fitness: off" in error.fix
    new = examined.host.calls()[len(before) :]
    assert not any("llm-engine" in call for call in new), new
    assert examined.host.linked("current") == "r1"
    assert examined.record()["state"] == "failed"
    assert examined.events()[-1]["what"] == "fitness failed"
    # Found unfit is not kept: the next run asks again, and the mended one goes live.
    examined.behaves()
    examined.go("r2")
    assert examined.host.linked("current") == "r2"


def test_warnings_are_said_and_kept(examined: Examined, capsys: pytest.CaptureFixture[str]) -> None:
    examined.behaves(**{"drops system": True})
    examined.stage("r1")
    went = examined.go("r1")
    said = "its chat template drops system messages without a word"
    assert examined.record()["seen"]["warnings"] == [said]
    assert f"tokenizer: {said}" in capsys.readouterr().err
    assert went["warnings"] == [f"tokenizer: {said}"]


def test_code_of_the_model_is_run_only_where_settings_trust_it(examined: Examined) -> None:
    examined.behaves(code=True)
    examined.stage("r1")
    error = examined.refused("r1")
    assert "tokenizer cannot be loaded" in error.what
    assert "trust-remote-code: true and model.accept: [code]" in error.fix
    examined.go("r1", trust_remote_code=True)


def test_a_runtime_without_transformers_says_so(examined: Examined) -> None:
    (examined.host.llm_root / "runtimes/vllm/site/transformers.py").unlink()
    examined.stage("r1")
    error = examined.refused("r1")
    assert "the runtime cannot import transformers" in error.what
    assert "No module named" in error.why


def test_a_hang_ends_with_the_step_that_hangs(examined: Examined) -> None:
    examined.behaves(hangs=True)
    examined.stage("r1")
    assert "hangs in 'load the tokenizer'" in examined.refused("r1", timeout_seconds=1.5).what


def test_off_asks_nothing(examined: Examined) -> None:
    examined.behaves(loses="a")
    examined.stage("r1")
    spec = examined.host.golive_spec("r1", fitness=None)
    assert golive.run(spec, Progress(None))["changed"] is True
    assert examined.host.proofs() == 0


def test_records_of_models_that_are_gone_go(examined: Examined) -> None:
    examined.stage("r1")
    examined.go("r1")
    old = examined.host.llm_root / "state/fitness/o--gone--master--vllm.json"
    old.write_text("{}")
    examined.stage("r2", model_digest="d2")
    examined.go("r2")
    assert not old.exists()
    assert examined.record()["depends_on"]["model_digest"] == "d2"
