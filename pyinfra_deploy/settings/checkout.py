"""The checkout that an inventory lies in, and the package that was imported: one and the same.

An installed copy stays as it was when the checkout is updated: old code would deploy the new locks,
units and host program, a mixture that nobody has tried.
"""

from __future__ import annotations

from pathlib import Path

from pyinfra_deploy.settings.problems import Problem, SettingsError

PACKAGE = Path(__file__).resolve().parents[1]


def refuse_other_checkout(root: Path, package: Path = PACKAGE) -> None:
    """SettingsError where `root` is a checkout of this project, and another's code runs.

    root: of the inventory. An inventory kept outside a checkout is nobody's in particular.
    """
    own = (root / PACKAGE.name).resolve()
    if not (own / "__init__.py").is_file() or own == package:
        return
    raise SettingsError(
        [
            Problem(
                PACKAGE.name,
                None,
                "",
                None,
                str(package),
                f"this inventory lies in the checkout {root}, and the code that runs is not that "
                "checkout's: it is from another one, or a copy that was installed without -e and "
                "does not follow `git pull`.",
                f"cd {root} && .venv/bin/pip install --require-hashes -r requirements.txt && "
                ".venv/bin/pip install --no-deps --no-build-isolation -e . ; then use this "
                "checkout's .venv/bin/fleet and .venv/bin/pyinfra.",
            )
        ]
    )
