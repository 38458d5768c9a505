"""Reading a vLLM's arguments from its source: a small package with every way that vLLM defines one.

The real thing is in tests/integration/vllm_arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fleet_host.errors import HostError
from fleet_host.vllm_flags import read_flags

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "__init__.py": "raise RuntimeError('imported')\n",
    "entrypoints/cli/serve.py": "from vllm.entrypoints.server.cli_args import make_arg_parser\n",
    "entrypoints/server/cli_args.py": '''
from dataclasses import field
from typing import Literal
from vllm.config import config
from vllm.engine.arg_utils import AsyncEngineArgs
from .constants import EVENT_SIZE

@config
class BaseFrontendArgs:
    lora_modules: list[str] | None = None
    chat_template_format: "Literal['auto', 'openai']" = "auto"
    """How."""
    use_old: bool = False
    """Deprecated: it has no effect."""
    not_a_field = 3

    @classmethod
    def _customize_cli_kwargs(cls, kwargs):
        kwargs["lora_modules"]["action"] = LoRAParserAction
        return kwargs

    @classmethod
    def add_cli_args(cls, parser):
        kwargs = get_kwargs(cls)
        kwargs = cls._customize_cli_kwargs(kwargs)
        for key, value in kwargs.items():
            group.add_argument(f"--{key.replace('_', '-')}", **value)
        return parser

@config
class FrontendArgs(BaseFrontendArgs):
    uds: str | None = None
    event_size: int = EVENT_SIZE
    allowed_origins: list[str] = field(default_factory=lambda: ["*"])
    middleware: list[str] = field(default_factory=list)

    @classmethod
    def _customize_cli_kwargs(cls, kwargs):
        kwargs = super()._customize_cli_kwargs(kwargs)
        kwargs["allowed_origins"]["type"] = json.loads
        del kwargs["allowed_origins"]["nargs"]
        kwargs["middleware"]["action"] = "append"
        if "nargs" in kwargs["middleware"]:
            del kwargs["middleware"]["nargs"]
        return kwargs

def make_arg_parser(parser):
    parser.add_argument("model_tag", type=str, nargs="?")
    parser.add_argument("--headless", action="store_true", default=False, help="No server.")
    parser.add_argument("--config", help="A file.")
    parser = FrontendArgs.add_cli_args(parser)
    parser = AsyncEngineArgs.add_cli_args(parser)
    return parser
''',
    "entrypoints/server/constants.py": "EVENT_SIZE = 4 * 1024\n",
    "config/__init__.py": "from vllm.config.all import *\nfrom .all import A, B, Extra, config\n",
    "config/all.py": '''
from typing import TYPE_CHECKING, Annotated, Literal, Optional, Union
from dataclasses import dataclass, field
from pydantic import Field
if TYPE_CHECKING:
    from somewhere import Methods
else:
    Methods = str
Level = Literal["low", "high"]
ModelType = Union[Level, "torch.dtype"]

def config(cls): return cls

class Sizes(dict[str, int]):
    pass

@config
class Extra:
    x: int = 1

@dataclass
class A:
    max_model_len: int = Field(default=None, ge=1)
    level: Level = "low"
    loose: Level | str = "low"
    dtype: ModelType = "low"
    method: Optional[Methods] = None
    share: Annotated[float, Field(gt=0)] = 0.9
    eager: bool = False
    progress: bool | str | None = None
    levels: list[Level] | None = None
    numbers: list[int] = field(default_factory=list)
    extra: Extra = field(default_factory=Extra)
    sizes: Sizes = field(default_factory=Sizes)
    overrides: dict = field(default_factory=dict)
    texts: Union[dict[str, str], str, None] = None
    old: int = 0
    """[DEPRECATED] Use new."""

@dataclass
class B:
    backend: Literal["x", "y"] | None = None
''',
    "engine/arg_utils.py": """
from vllm.config import A, B
GONE = (
    "--gone is deprecated and has no effect. "
    + "It will be removed in v9."
)
@dataclass
class EngineArgs:
    max_model_len: int = A.max_model_len

    @staticmethod
    def add_cli_args(parser):
        a_kwargs = get_kwargs(A)
        group.add_argument("--max-model-len", "-m", **a_kwargs["max_model_len"])
        group.add_argument("--level", **a_kwargs["level"])
        group.add_argument("--loose", **a_kwargs["loose"])
        group.add_argument("--dtype", **a_kwargs["dtype"])
        group.add_argument("--method", **a_kwargs["method"])
        group.add_argument("--share", "--portion", dest="share", **a_kwargs["share"])
        group.add_argument("--eager", **{**a_kwargs["eager"], "default": None})
        group.add_argument("--progress", **a_kwargs["progress"])
        group.add_argument("--levels", **a_kwargs["levels"])
        group.add_argument("--numbers", **a_kwargs["numbers"])
        group.add_argument("--extra", **a_kwargs["extra"])
        group.add_argument("--sizes", **a_kwargs["sizes"])
        group.add_argument("--overrides", **a_kwargs["overrides"])
        group.add_argument("--texts", **a_kwargs["texts"])
        group.add_argument("--old", **a_kwargs["old"])
        group.add_argument("--gone", action=argparse.BooleanOptionalAction, help=GONE)
        b_kwargs = get_kwargs(B)
        b_kwargs["backend"]["choices"].remove("x")
        group.add_argument("--backend", **b_kwargs["backend"])
        alone = get_kwargs(B)["backend"]
        alone["type"] = lambda text: text.lower()
        group.add_argument("--alone", **alone)
        group.add_argument("--late", type=int, deprecated=True, choices=[1, 2], default=A.old)
        return parser

class AsyncEngineArgs(EngineArgs):
    @staticmethod
    def add_cli_args(parser, async_args_only=False):
        if not async_args_only:
            parser = EngineArgs.add_cli_args(parser)
        parser.add_argument("--log-requests", action=argparse.BooleanOptionalAction)
        return parser
""",
}


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "lib/python3.12/site-packages/vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "lib/python3.12/site-packages/vllm-9.1.0.dist-info").mkdir()
    return tmp_path


# kind, type, choices, default
EXPECTED: dict[str, tuple[str, str | None, list[str] | None, str | None]] = {
    "headless": ("switch", "bool", None, "False"),
    "config": ("value", "str", None, None),
    "lora-modules": ("values", "str", None, "None"),
    "chat-template-format": ("value", "str", ["auto", "openai"], "'auto'"),
    "use-old": ("boolean", "bool", None, "False"),
    "uds": ("value", "str", None, "None"),
    "event-size": ("value", "int", None, "4 * 1024"),
    "allowed-origins": ("value", None, None, "['*']"),
    "middleware": ("repeated", "str", None, "[]"),
    "max-model-len": ("value", "int", None, "None"),
    "level": ("value", "str", ["high", "low"], "'low'"),
    "loose": ("value", "str", None, "'low'"),
    "dtype": ("value", "str", ["high", "low"], "'low'"),
    "method": ("value", "str", None, "None"),
    "share": ("value", "float", None, "0.9"),
    "eager": ("boolean", "bool", None, "None"),
    "progress": ("optional", "str", None, "None"),
    "levels": ("values", "str", ["high", "low"], "None"),
    "numbers": ("values", "int", None, "[]"),
    "extra": ("value", "json", None, "Extra()"),
    "sizes": ("value", "json", None, "Sizes()"),
    "overrides": ("value", "json", None, "{}"),
    "texts": ("value", "json-or-text", None, "None"),
    "old": ("value", "int", None, "0"),
    "gone": ("boolean", "bool", None, None),
    # Another list than the type hint's, by a call that is not followed.
    "backend": ("value", "str", None, "None"),
    "alone": ("value", None, ["x", "y"], "None"),
    "late": ("value", "int", ["1", "2"], "0"),
    "log-requests": ("boolean", "bool", None, None),
}


def test_every_way_to_define_an_argument(environment: Path) -> None:
    read = read_flags(environment)
    found = {
        name: (flag["kind"], flag["type"], flag["choices"], flag["default"])
        for name, flag in read["flags"].items()
    }
    assert found == EXPECTED
    assert read["version"] == "9.1.0"
    assert read["flags"]["share"]["aliases"] == ["portion"]


def test_what_is_on_its_way_out(environment: Path) -> None:
    said = {n: f["deprecated"] for n, f in read_flags(environment)["flags"].items()}
    assert {name for name, text in said.items() if text} == {"use-old", "old", "gone", "late"}
    assert said["gone"] == "--gone is deprecated and has no effect. It will be removed in v9."


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("entrypoints/cli/serve.py", "", "has no make_arg_parser"),
        ("entrypoints/server/cli_args.py", "def make_arg_parser(parser): pass\n", "only 0"),
        ("engine/arg_utils.py", "def (:\n", "cannot be parsed"),
        ("engine/arg_utils.py", "x = 1\n", "max-model-len"),
    ],
)
def test_another_layout_is_not_guessed_at(
    environment: Path, file: str, text: str, says: str
) -> None:
    (environment / "lib/python3.12/site-packages/vllm" / file).write_text(text)
    with pytest.raises(HostError) as caught:
        read_flags(environment)
    assert says in caught.value.why


def test_an_environment_without_vllm(tmp_path: Path) -> None:
    with pytest.raises(HostError) as caught:
        read_flags(tmp_path)
    assert "no package vllm" in caught.value.why


def test_circles_end(environment: Path) -> None:
    place = environment / "lib/python3.12/site-packages/vllm"
    (place / "entrypoints/cli/serve.py").write_text(
        "from vllm.entrypoints.cli.other import make_arg_parser\n"
    )
    (place / "entrypoints/cli/other.py").write_text(
        "from vllm.entrypoints.cli.serve import make_arg_parser\n"
    )
    with pytest.raises(HostError):
        read_flags(environment)
