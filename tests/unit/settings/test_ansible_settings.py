"""What `ansible` and `hooks` may name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy.settings import SettingsError
from pyinfra_deploy.settings.fleet import load_fleet
from tests.fakes.repository import GOOD

if TYPE_CHECKING:
    from tests.fakes.repository import Repository


def test_files_that_are_there_are_taken(repository: Repository) -> None:
    for path in ("playbooks/a.yml", "playbooks/requirements.yml", "vendor/roles/x.tar.gz"):
        repository.write(path, "[]\n")
    repository.write(
        "group_vars/prod.yml",
        f"{GOOD}ansible: {{before: [playbooks/a.yml], requirements: playbooks/requirements.yml, "
        "requirements_directory: vendor}\nhooks: {before: [[hooks/chat, '#operations']]}\n",
    )
    settings = load_fleet("prod", repository.root).hosts["gpu01"].settings
    assert settings.ansible.playbooks == ("playbooks/a.yml",)
    assert settings.hooks.before == (("hooks/chat", "#operations"),)
    assert hash(settings.ansible) == hash(settings.ansible.model_copy())


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("{before: [playbooks/b.yml]}", "names playbooks/b.yml, and there is no such file"),
        ("{requirements: r.yml}", "names r.yml, and there is no such file"),
        ("{requirements_directory: vendor}", "is set without ansible.requirements"),
        ("{before: [/etc/p.yml]}", "inside the repository"),
        ("{befor: []}", "before"),
    ],
)
def test_what_is_wrong_is_said(repository: Repository, written: str, words: str) -> None:
    repository.write("group_vars/prod.yml", f"{GOOD}ansible: {written}\n")
    with pytest.raises(SettingsError, match=words):
        load_fleet("prod", repository.root)
