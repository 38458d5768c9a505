"""Models with good, odd and damaged tokenizers: `PYTHON -m tests.fakes.tokenizer_cases DIRECTORY`,
by a Python with transformers, makes each in a directory of its own and examines it: found.json.

No test module: it runs beside fleet_host in a runtime's Python, which has no pytest.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet_host import fitness_script
from fleet_host.errors import HostError

from lab.models import tiny_moe

if TYPE_CHECKING:
    from collections.abc import Callable

ASKED: dict[str, Any] = {"runtime": "/srv/llm/runtimes/vllm"}
# A token of the tiny model that is ordinary text.
ORDINARY = 700


def edit(directory: Path, name: str, change: Callable[[Any], object]) -> None:
    document = json.loads((directory / name).read_text())
    change(document)
    (directory / name).write_text(json.dumps(document))


def config(**change: Any) -> Callable[[Path], None]:
    return lambda directory: edit(directory, "config.json", lambda d: d.update(change))


def ends_with(number: int) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        edit(directory, "config.json", lambda d: d.update(eos_token_id=number))
        (directory / "generation_config.json").unlink()

    return change


def tokenizer(change: Callable[[Any], object]) -> Callable[[Path], None]:
    return lambda directory: edit(directory, "tokenizer.json", change)


def template(text: str) -> Callable[[Path], None]:
    return lambda directory: _write(directory / "chat_template.jinja", text)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def cut(directory: Path) -> None:
    path = directory / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:20000])


def vocabulary_cut(document: Any) -> None:
    vocabulary = document["model"]["vocab"]
    kept = {token: number for token, number in vocabulary.items() if number < 300}
    document["model"]["vocab"] = kept


def two_files(directory: Path) -> None:
    """vocab.json as older repositories have it, and merges.txt lost."""
    document = json.loads((directory / "tokenizer.json").read_text())
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.json").write_text(json.dumps(document["model"]["vocab"]))


def without_tokenizer(directory: Path) -> None:
    for path in directory.glob("tokenizer*"):
        path.unlink()


def own_code(directory: Path) -> None:
    (directory / "tokenization_own.py").write_text("raise SystemExit('code of the model ran')\n")
    edit(
        directory,
        "tokenizer_config.json",
        lambda d: d.update(
            auto_map={"AutoTokenizer": ["tokenization_own.Own", None]}, tokenizer_class="Own"
        ),
    )
    (directory / "tokenizer.json").unlink()


def added_without_rows(document: Any) -> None:
    token = dict(document["added_tokens"][0], id=1024, content="<|new|>")
    document["added_tokens"].append(token)


def normalizer(*kinds: str) -> Callable[[Path], None]:
    rules = [{"type": kind} for kind in kinds]
    return tokenizer(lambda d: d.update(normalizer={"type": "Sequence", "normalizers": rules}))


def byte_fallback(directory: Path) -> None:
    """As Gemma's: "▁" for a space, bytes for what has no token."""
    names = [f"<0x{number:02X}>" for number in range(256)]
    letters = [*"abcdefghijklmnopqrstuvwxyz", "▁"]
    vocabulary = {token: n for n, token in enumerate([*tiny_moe.SPECIAL_TOKENS, *names, *letters])}

    def change(document: Any) -> None:
        document["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        document["pre_tokenizer"] = None
        document["decoder"] = {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        }
        document["model"].update(vocab=vocabulary, merges=[], byte_fallback=True, fuse_unk=True)

    edit(directory, "tokenizer.json", change)


TOOLS = "{{ tools[0].function.name if tools }}{{ messages[-1].content }}"
NEEDS_TEXT = (
    "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}"
    "{{ m.tool_calls[0].function.arguments + '!' }}{% endif %}{% endfor %}"
    "{% if tools %}{{ tools }}{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{{ messages[0].content }}"
)
# name -> (what is done to the tiny model, further keys of what is asked)
CASES: dict[str, tuple[Callable[[Path], object], dict[str, Any]]] = {
    "good": (lambda _: None, {}),
    "composes": (normalizer("NFC"), {}),
    "folds": (normalizer("NFKC", "Lowercase"), {}),
    "byte fallback": (byte_fallback, {}),
    "embeds": (config(architectures=["BertModel"]), {}),
    "added without rows": (tokenizer(added_without_rows), {}),
    "no template": (template(""), {}),
    "no system": (template(NO_SYSTEM), {}),
    "tools": (template(TOOLS), {"tools": True}),
    "another template": (template("{% broken"), {"chat_template": "{{ messages[-1].content }}"}),
    "tools fail": (template(NEEDS_TEXT), {"tools": True}),
    "tools fail unasked": (template(NEEDS_TEXT), {}),
    "template broken": (template("{% for m in messages %}{{ m.content }"), {}),
    "template drops": (template("{{ bos_token }}hello"), {}),
    "end outside": (ends_with(5000), {}),
    "end ordinary": (ends_with(ORDINARY), {}),
    "another model's": (config(vocab_size=512), {}),
    "vocabulary small": (config(vocab_size=151936), {}),
    "vocabulary cut": (tokenizer(vocabulary_cut), {}),
    "merges gone": (tokenizer(lambda d: d["model"].update(merges=[])), {}),
    "merges.txt gone": (two_files, {}),
    "cut": (cut, {}),
    "none": (without_tokenizer, {}),
    "decoder gone": (tokenizer(lambda d: d.update(decoder=None)), {}),
    "own code": (own_code, {}),
}


def main(place: Path) -> None:
    good = place / "good"
    good.mkdir()
    tiny_moe.make(good)
    # It is in tokenizer_config.json too; changed ones are in the file that wins.
    edit(good, "tokenizer_config.json", lambda d: d.pop("chat_template"))
    found: dict[str, Any] = {"transformers": importlib.import_module("transformers").__version__}
    for name, (change, more) in CASES.items():
        directory = place / name
        if name != "good":
            shutil.copytree(good, directory)
            if name in ("another model's", "vocabulary small", "byte fallback"):
                # Without its weights, whose rows would say it as well.
                for path in directory.glob("model*"):
                    path.unlink()
            change(directory)
        seen: dict[str, Any] = {}
        steps: list[str] = []
        error = None
        try:
            asked = {**ASKED, "model": str(directory), **more}
            fitness_script.examine(asked, steps.append, seen)
        except HostError as refusal:
            error = refusal.as_dict()
        found[name] = {"error": error, "seen": seen, "steps": steps}
    (place / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
