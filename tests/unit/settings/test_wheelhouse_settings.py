"""Where wheels come from: exactly one place, and a lock that names them where it must."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy.settings import SettingsError, load_fleet

if TYPE_CHECKING:
    from tests.fakes.repository import Repository


def write(repository: Repository, lines: str) -> None:
    path = repository.root / "group_vars/prod.yml"
    path.write_text(path.read_text().replace("locks/one.txt", f"locks/one.txt\n  {lines}", 1))


@pytest.mark.parametrize(
    ("lines", "key", "words"),
    [
        (
            "wheelhouse: {path: /srv/wheels, url: 'http://files.example.com/'}",
            "runtime.wheelhouse",
            ("path and url", "exactly one place"),
        ),
        ("wheelhouse: {}", "runtime.wheelhouse", ("none of path, url and serve_from",)),
        (
            "wheelhouse: {path: /srv/wheels}\n  find_links: ['http://x.example.com/']",
            "runtime.find_links",
            ("runtime.find_links", "runtime.wheelhouse"),
        ),
        (
            "wheelhouse: {serve_from: first}",
            "runtime.lock",
            ("does not name its wheels", "serve_from"),
        ),
        ("wheelhouse: {path: /tmp/wheels}", "runtime.wheelhouse.path", ("/tmp",)),
        ("wheelhouse: {serve_from: gpu01}", "runtime.wheelhouse.serve_from", ("first",)),
    ],
)
def test_wrong_places(repository: Repository, lines: str, key: str, words: tuple[str, ...]) -> None:
    write(repository, lines)
    with pytest.raises(SettingsError) as caught:
        load_fleet("prod", repository.root)
    problem = next(one for one in caught.value.problems if one.key_path == key)
    for word in words:
        assert word in str(problem)


def test_the_first_host_with_a_lock_that_names_its_wheels(repository: Repository) -> None:
    path = repository.root / "locks/one.txt"
    path.write_text(path.read_text() + f"    # wheel vllm-0.33.0-x.whl 1 sha256:{'0' * 64}\n")
    write(
        repository, "wheelhouse: {serve_from: first}\n  index_url: 'https://x.example.com/simple'"
    )
    runtime = load_fleet("prod", repository.root).hosts["gpu01"].settings.runtime
    assert runtime is not None
    assert runtime.wheelhouse is not None
    assert (runtime.wheelhouse.serve_from, runtime.wheelhouse.port) == ("first", 8471)
