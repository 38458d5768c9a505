"""`fleet runtime lock`: make lock files from index metadata; nothing is installed."""

from __future__ import annotations

import datetime
import difflib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

from pyinfra_deploy.runtime.recipes import FILE, Recipe, add_recipe, problem, read_recipes
from pyinfra_deploy.runtime.resolve import Places, Unresolved, make_lock

if TYPE_CHECKING:
    import argparse

LOCKS = Path("locks")


def register(actions: Any) -> None:
    """Add `lock`; `actions` is argparse's object for subcommands, which has no public type."""
    lock = actions.add_parser(
        "lock",
        help="resolve vLLM for a Python and a platform to a file of versions and hashes",
        description="Makes lock files as locks/recipes.yml says, from index metadata alone. "
        "Versions that a lock has are kept. With --vllm: a new one, whose recipe is added.",
    )
    lock.add_argument("lock", nargs="*", help="path below locks/; default: all of them")
    lock.add_argument("--upgrade", action="store_true", help="take the newest versions allowed")
    lock.add_argument(
        "--before",
        type=datetime.date.fromisoformat,
        metavar="DATE",
        help="with --upgrade or --vllm: see only packages uploaded before it (default: today)",
    )
    lock.add_argument("--vllm", metavar="VERSION", help="make a lock of this vLLM")
    lock.add_argument("--python", default="3.12", metavar="3.N", help="for --vllm")
    lock.add_argument("--platform", default="x86_64-manylinux_2_35", help="for --vllm")
    lock.add_argument(
        "--cuda",
        default="default",
        metavar="NAME",
        help="for --vllm: the CUDA build, such as cu129, from the indexes of --extra-index "
        "(default: the one on PyPI)",
    )
    lock.add_argument("--extra-index", action="append", default=[], metavar="URL")
    lock.add_argument("--index-url", metavar="URL", help="in place of PyPI; not recorded")
    lock.add_argument(
        "--find-links", action="append", default=[], metavar="PLACE",
        help="a directory or page with wheels that no index has; not recorded",
    )  # fmt: skip
    lock.set_defaults(run=_lock)


def _lock(arguments: argparse.Namespace) -> int:
    """Exit code: 0 made, 1 some lock could not be made and is as it was."""
    root = Path.cwd()
    recipes = read_recipes(root)
    if arguments.vllm:
        recipe = new_recipe(arguments)
        if recipe.path not in recipes:
            asked, add = [recipe], True
        else:
            asked, add = [recipes[recipe.path]], False
    else:
        asked, add = [_known(recipes, path) for path in arguments.lock or recipes], False
    places = Places(
        arguments.index_url,
        tuple(
            place if "://" in place else str(Path(place).resolve())
            for place in arguments.find_links
        ),
    )
    for recipe in asked:
        dated = recipe
        if arguments.upgrade:
            before = arguments.before or today()
            dated = recipe.model_copy(update={"before": before})
        try:
            changed = write_lock(root, dated, places, upgrade=arguments.upgrade)
        except Unresolved as error:
            print(f"locks/{recipe.path} could not be made, and is as it was:\n{error}",
                  file=sys.stderr)  # fmt: skip
            return 1
        if add:
            add_recipe(root, recipe)
        elif dated.before != recipe.before:
            _write_date(root, recipe, dated.before)
        print(f"locks/{recipe.path}: {'written' if changed else 'as it was'}")
    return 0


def today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def _known(recipes: dict[str, Recipe], path: str) -> Recipe:
    name = path.removeprefix("locks/")
    if name in recipes:
        return recipes[name]
    close = difflib.get_close_matches(name, recipes, 1, 0.4)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(recipes)}"
    raise problem(f"has no lock {name}: {hint}", "add a recipe, or use --vllm for a new one.")


def new_recipe(arguments: argparse.Namespace) -> Recipe:
    """The recipe of --vllm. SettingsError for options that do not go together."""
    variant = "" if arguments.cuda == "default" else arguments.cuda
    if variant and not re.fullmatch(r"cu\d{3}", variant):
        raise problem(f"{variant!r} is no CUDA build", "write cu129 or the like.", "--cuda")
    if variant and not arguments.extra_index:
        raise problem(
            "PyPI has one CUDA build of each vLLM only",
            "give the index of the other one, --extra-index https://wheels.vllm.ai/VERSION/cu129, "
            "and torch's, --extra-index https://download.pytorch.org/whl/cu129.",
            "--cuda",
        )
    python = arguments.python
    machine = arguments.platform.split("-")[0]
    middle = f"-{variant}" if variant else ""
    path = f"runtime/vllm-{arguments.vllm}{middle}-py{python.replace('.', '')}-linux_{machine}.txt"
    of = f"CUDA {variant.removeprefix('cu')[:-1]}.{variant[-1]}" if variant else "the CUDA of PyPI"
    try:
        return Recipe(
            path=path,
            purpose=f"vLLM {arguments.vllm}, {of}, Python {python}, {arguments.platform}.",
            requirements=(f"vllm=={arguments.vllm}{'+' + variant if variant else ''}",),
            before=arguments.before or today(),
            python=python,
            platform=arguments.platform,
            extra_index=tuple(arguments.extra_index),
        )
    except pydantic.ValidationError as error:
        raise problem(f"cannot be: {error}", "correct the options.", "--vllm") from error


def write_lock(root: Path, recipe: Recipe, places: Places, *, upgrade: bool) -> bool:
    """Make a lock; whether the file changed. Raises Unresolved, and the file is as it was."""
    target = root / LOCKS / recipe.path
    old = target.read_text(encoding="utf-8") if target.exists() else None
    text = make_lock(recipe, old, places, upgrade=upgrade)
    if text == old:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(target)
    return True


def _write_date(root: Path, recipe: Recipe, before: datetime.date) -> None:
    """Change one recipe's date in the file, whose comments stay."""
    path = root / FILE
    parts = re.split(r"(?m)^(?=- path: )", path.read_text(encoding="utf-8"))
    for index, part in enumerate(parts):
        if part.startswith(f"- path: {recipe.path}\n"):
            parts[index] = re.sub(r"(?m)^  before: .*$", f"  before: {before}", part, count=1)
    temporary = path.with_suffix(".new")
    temporary.write_text("".join(parts), encoding="utf-8")
    temporary.replace(path)
