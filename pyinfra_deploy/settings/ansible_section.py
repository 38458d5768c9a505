"""The settings of playbooks and commands that are not ours, and run around what is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pyinfra_deploy.settings.kinds import OneLine, RepositoryPath, Seconds
from pyinfra_deploy.settings.section import LENIENT, Section, setting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Ansible(Section):
    """Your own playbooks, run by `fleet rollout` and `fleet deploy` on the hosts that they are at.
    They see this inventory and these group_vars. docs/ansible.md."""

    before: Annotated[tuple[RepositoryPath, ...], LENIENT] = setting(
        (),
        "Playbooks that run on a host in its turn, before the deploy, in this order. A host on "
        "which one fails is not switched. Engines serve meanwhile: nothing for drivers.",
        ["playbooks/hardening.yml"],
    )
    after: Annotated[tuple[RepositoryPath, ...], LENIENT] = setting(
        (),
        "Playbooks that run on a host that serves what it is to. Where one fails, the host goes on "
        "serving and the rollout stops.",
        ["playbooks/monitoring.yml"],
    )
    requirements: RepositoryPath | None = setting(
        None,
        "Roles and collections that they need, as `ansible-galaxy install -r` takes them. They are "
        "installed below .fleet/ansible, once for each content of the file.",
        "playbooks/requirements.yml",
    )
    requirements_directory: RepositoryPath | None = setting(
        None,
        "Where they are installed from instead of the network: collections/ and roles/ in it, with "
        "a .tar.gz of each. null: from where the file says.",
        "vendor/ansible",
    )
    timeout_seconds: Seconds = setting(
        3600, "Longest time of one playbook on one batch; then it is ended and has failed.", 3600
    )

    @property
    def playbooks(self) -> tuple[str, ...]:
        return (*self.before, *self.after)


Command = Annotated[tuple[OneLine, ...], LENIENT]


class Hooks(Section):
    """Commands on the operator's machine at the beginning and the end of `fleet rollout`,
    `rollback`, `deploy` and `runbook run`, with the facts as JSON on stdin. Of the inventory, so
    they belong into its own group_vars. docs/hooks.md."""

    before: Annotated[tuple[Command, ...], LENIENT] = setting(
        (),
        "Before the first host is touched: each a program of the repository or of PATH and its "
        "arguments, run in the repository's root.",
        [["hooks/chat", "#operations"]],
    )
    after: Annotated[tuple[Command, ...], LENIENT] = setting(
        (), "At the end, however it ended.", [["hooks/chat", "#operations"]]
    )
    on_failure: Annotated[tuple[Command, ...], LENIENT] = setting(
        (), "At an end with an exit code other than 0, before `after`.", [["hooks/ticket"]]
    )
    when_failing: Literal["stop", "warn"] = setting(
        "stop",
        "What a `before` command that fails does. stop: nothing is begun. warn: it is said. After "
        "the end there is nothing to stop: it is said, and the exit code stays that of the run.",
        "warn",
    )
    timeout_seconds: Seconds = setting(
        60, "Longest time of one command; then it is killed and has failed.", 60
    )


def missing_files(section: Ansible, root: Path) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """(key path, message, fix) of what it names and the repository has not."""
    where = "correct the path (relative to the repository), or remove it."
    for key, paths in (("before", section.before), ("after", section.after)):
        for path in paths:
            if not (root / path).is_file():
                yield ("ansible", key), f"names {path}, and there is no such file.", where
    if section.requirements is not None and not (root / section.requirements).is_file():
        message = f"names {section.requirements}, and there is no such file."
        yield ("ansible", "requirements"), message, where
    directory = section.requirements_directory
    if directory is None:
        return
    if section.requirements is None:
        yield (
            ("ansible", "requirements_directory"),
            "is set without ansible.requirements, which says what is needed of it.",
            "name the file of requirements, or remove this.",
        )
    if not (root / directory).is_dir():
        message = f"names {directory}, and there is no such directory."
        yield ("ansible", "requirements_directory"), message, where
