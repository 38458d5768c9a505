"""The part of an environment's spec that is conda's: what conda would take and we do not."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from fleet_host import conda_spec, environment_spec
from fleet_host.errors import SpecError

FORGE = "https://conda.anaconda.org/conda-forge"
PYTHON = f"{FORGE}/linux-64/python-3.12.7-h_0.conda#{'0' * 64}\n"
LOCK = "# a comment\n@EXPLICIT\n" + PYTHON


def read(**changes: Any) -> conda_spec.Conda:
    good = {"program": "/opt/conda/bin/conda", "lock": LOCK, "channels": [FORGE], "terms": None}
    return conda_spec.read({**good, **changes})


def test_a_good_spec_is_read() -> None:
    found = read(terms={"accepted_by": "Ada", "accepted_on": "2026-11-30", "channels": [FORGE]})
    assert str(found.root) == "/opt/conda"
    assert found.packages == {"python-3.12.7-h_0": "0" * 64}
    assert found.consent == conda_spec.Consent("Ada", date(2026, 11, 30), (FORGE,))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lock": PYTHON}, "no line @EXPLICIT"),
        ({"lock": "@EXPLICIT\n"}, "names no package"),
        ({"lock": LOCK.replace("#" + "0" * 64, "")}, "is no package with a SHA-256"),
        ({"lock": LOCK.replace("0" * 64, "0" * 32)}, "is no package with a SHA-256"),
        ({"lock": LOCK + "python=3.12\n"}, "python=3.12"),
        ({"lock": LOCK + "--channel x\n"}, "--channel x"),
        ({"lock": LOCK.replace("linux-64", "osx-64")}, "is no package"),
        # conda would fetch it, whatever its channels are.
        ({"channels": ["https://elsewhere.example/c"]}, "is of no channel in the settings"),
        ({"channels": [FORGE[:-1]]}, "is of no channel in the settings"),
        ({"channels": []}, "at least one channel"),
        ({"program": "conda"}, "PREFIX/bin/conda"),
        ({"terms": True}, "must be an object"),
        ({"terms": {"accepted_by": "A", "accepted_on": "soon", "channels": []}}, "is no date"),
        ({"terms": {"accepted_on": "2026-11-30"}}, "must be a text"),
        ({"terms": {"accepted": True}}, "would ignore them"),
        ({"more": 1}, "would ignore them"),
    ],
)  # fmt: skip
def test_what_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(**changes)
    assert words in f"{caught.value.what} {caught.value.why} {caught.value.fix}"


def test_condas_lock_makes_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_LLM_ROOT", "/srv/llm")
    spec = {
        "path": "/srv/llm/runtimes/vllm-1",
        "python": "3.12",
        "requirements": f"vllm==1 --hash=sha256:{'0' * 64}\n",
        "installer": "pip",
    }
    conda = {"program": "/opt/conda/bin/conda", "lock": LOCK, "channels": [FORGE], "terms": None}
    one = environment_spec.read_spec({**spec, "conda": conda})
    assert str(one.python) == "/srv/llm/runtimes/vllm-1/bin/python3.12"
    # Which conda makes it, and on whose consent, does not.
    same = {**conda, "program": "/other/bin/conda"}
    assert environment_spec.read_spec({**spec, "conda": same}).digest() == one.digest()
    other = {**conda, "lock": LOCK.replace("h_0", "h_1")}
    assert environment_spec.read_spec({**spec, "conda": other}).digest() != one.digest()
    assert environment_spec.read_spec(spec).digest() != one.digest()
