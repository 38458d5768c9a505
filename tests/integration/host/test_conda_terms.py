"""Terms of conda's channels: each trap of conda-anaconda-tos 0.2.2 switched on in the stand-in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import conda_consent, conda_terms, environment_spec
from fleet_host.errors import HostError

from tests.fakes.conda_world import consent
from tests.standin import conda_channel

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.conda_world import CondaWorld
    from tests.standin.conda_channel import Channel


def refused(world: CondaWorld, *channels: Channel, **changes: Any) -> HostError:
    with pytest.raises(HostError) as caught:
        world.build(*channels, **changes)
    assert not (world.path / environment_spec.COMPLETE).exists()
    return caught.value


def test_without_consent_nothing_is_accepted(conda_world: CondaWorld) -> None:
    """conda's own refusal (exit 1, CondaToSNonInteractiveError) in words, with both ways out."""
    error = refused(conda_world, conda_world.main)
    assert conda_world.main.url in error.what
    assert "conda-forge" in error.fix
    assert "runtime.conda.terms" in error.fix
    assert conda_world.acceptances() == []
    assert "tos accept" not in conda_world.commands()


def test_with_consent_both_channels_are_accepted_for_this_user(conda_world: CondaWorld) -> None:
    """Linux' `defaults` are two channels: one acceptance would not do."""
    world = conda_world
    world.build(world.main, world.r, consent=consent(world.main, world.r))
    assert world.commands().count("tos accept") == 2
    assert len(world.acceptances()) == 2
    record = json.loads((world.path / environment_spec.COMPLETE).read_text())
    assert record["conda"]["consent"]["accepted_by"] == "Ada Lovelace"
    assert set(record["conda"]["terms"]) == {world.main.url, world.r.url}
    accept = conda_channel.calls(world.prefix)[1]["argv"]
    assert accept == ["tos", "accept", "--ignore-cache", "--override-channels", "--channel",
                      world.main.url, "--json"]  # fmt: skip


def test_consent_to_one_of_two_is_not_consent_to_the_other(conda_world: CondaWorld) -> None:
    world = conda_world
    error = refused(world, world.main, world.r, consent=consent(world.main))
    assert world.r.url in error.what
    assert world.main.url not in error.what


def test_what_is_accepted_is_not_accepted_again(conda_world: CondaWorld) -> None:
    world = conda_world
    world.build(world.main, consent=consent(world.main))
    before = world.acceptances()[0].read_text()
    (world.path / environment_spec.COMPLETE).unlink()
    assert world.build(world.main, consent=consent(world.main))["state"] == "built"
    assert world.commands().count("tos accept") == 1
    assert world.acceptances()[0].read_text() == before


def test_terms_out_of_reach_are_not_accepted_with_exit_code_0(conda_world: CondaWorld) -> None:
    (conda_world.main.directory / "terms.json").unlink()
    error = refused(conda_world, conda_world.main, consent=consent(conda_world.main))
    assert "cannot be read" in error.what
    assert "tos accept" not in conda_world.commands()


def test_terms_that_only_conda_cannot_reach(conda_world: CondaWorld) -> None:
    """accept: exit 0, null, nothing accepted, an empty answer in its cache for an hour."""
    world = conda_world
    world.switch(serves={world.main.url: "file:///nowhere"})
    error = refused(world, world.main, consent=consent(world.main))
    assert "accepted nothing" in error.why
    assert list(world.home.glob(".cache/conda-anaconda-tos/*.cache"))
    # The cache is ignored once the way is free.
    world.switch()
    assert world.build(world.main, consent=consent(world.main))["state"] == "built"


def test_an_empty_cache_makes_create_skip_its_check_and_we_do_not(
    conda_world: CondaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a channel that is known to have terms, the files have to say that they are accepted."""
    world = conda_world
    monkeypatch.setattr(conda_consent, "WITH_TERMS", world.main.url)
    cache = world.home / ".cache/conda-anaconda-tos"
    cache.mkdir(parents=True)
    (cache / f"{conda_terms.hash_of(world.main.url)}.cache").write_text("")
    error = refused(world, world.main)
    assert "are not accepted" in error.what
    assert "create --yes" not in world.commands()


def test_an_empty_cache_of_a_mirror_is_forgotten_before_conda_checks(
    conda_world: CondaWorld,
) -> None:
    """Whose channel has terms only it knows: conda asks it, and does not take the empty answer of
    an earlier hour for none."""
    world = conda_world
    cache = world.home / ".cache/conda-anaconda-tos"
    cache.mkdir(parents=True)
    (cache / f"{conda_terms.hash_of(world.main.url)}.cache").write_text("")
    error = refused(world, world.main)
    assert "are not accepted" in error.what
    assert "create --yes" in world.commands()
    assert world.acceptances() == []


@pytest.mark.parametrize(
    "text", ["<html>", "[]", '{"version": "soon", "text": "x"}', '{"text": 1}']
)
def test_malformed_terms_are_not_accepted(conda_world: CondaWorld, text: str) -> None:
    (conda_world.main.directory / "terms.json").write_text(text)
    error = refused(conda_world, conda_world.main, consent=consent(conda_world.main))
    assert conda_world.main.url in error.what
    assert "tos accept" not in conda_world.commands()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CI", "true"),
        ("GITHUB_ACTIONS", "true"),
        ("JENKINS_URL", "https://jenkins.example"),
        ("CONDA_PLUGINS_AUTO_ACCEPT_TOS", "yes"),
        ("CONDATOS", "/somewhere"),
        ("CONDA_PREFIX", "/somewhere"),
        ("XDG_CONFIG_HOME", "/somewhere"),
    ],
)
def test_what_accepts_in_silence_does_not_reach_conda(
    conda_world: CondaWorld, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    refused(conda_world, conda_world.main)
    assert conda_world.acceptances() == []
    for call in conda_channel.calls(conda_world.prefix):
        assert call["env"].get(name) in (None, "false")


def test_a_proxy_reaches_conda(conda_world: CondaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/ssl/own.pem")
    conda_world.build()
    given = conda_channel.calls(conda_world.prefix)[-1]["env"]
    assert given["https_proxy"] == "http://proxy.example:3128"
    assert given["SSL_CERT_FILE"] == "/etc/ssl/own.pem"


def test_a_condarc_that_accepts_in_silence_is_overruled(conda_world: CondaWorld) -> None:
    conda_world.switch(auto_accept=True)
    refused(conda_world, conda_world.main)
    assert conda_world.acceptances() == []


def test_an_acceptance_that_nobody_gave_is_found_out(
    conda_world: CondaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a conda should accept by itself all the same, its environment does not count."""
    plain = conda_consent.environment

    def let_through(cache: Path, temporary: Path) -> dict[str, str]:
        return {**plain(cache, temporary), "CI": "true"}

    monkeypatch.setattr(conda_consent, "environment", let_through)
    error = refused(conda_world, conda_world.main)
    assert "by itself" in error.what
    assert str(conda_world.acceptances()[0]) in error.why


def test_a_conda_without_the_plugin_is_told(conda_world: CondaWorld) -> None:
    conda_world.switch(no_plugin=True)
    error = refused(conda_world, conda_world.main, consent=consent(conda_world.main))
    assert "does not know `conda tos`" in error.why
    assert "conda-anaconda-tos" in error.fix


def test_an_acceptance_that_did_not_take_is_found_out(conda_world: CondaWorld) -> None:
    conda_world.switch(forgets=True)
    error = refused(conda_world, conda_world.main, consent=consent(conda_world.main))
    assert "still not accepted" in error.what


def test_terms_newer_than_the_consent_are_not_accepted(conda_world: CondaWorld) -> None:
    world = conda_world
    error = refused(world, world.main, consent=consent(world.main, on="2026-07-14"))
    assert "newer than the consent" in error.what
    assert "2026-07-15" in error.why
    assert world.acceptances() == []


def test_new_terms_of_a_channel_need_a_new_consent(conda_world: CondaWorld) -> None:
    world = conda_world
    world.build(world.main, consent=consent(world.main))
    (world.path / environment_spec.COMPLETE).unlink()
    world.main.terms(version="2027-03-01T00:00:00Z")
    assert "newer than the consent" in refused(world, world.main, consent=consent(world.main)).what
    assert "are not accepted" in refused(world, world.main).what
    world.build(world.main, consent=consent(world.main, on="2027-03-02"))
    assert len(world.acceptances()) == 2


def test_a_rejection_is_not_overruled_by_a_consent(conda_world: CondaWorld) -> None:
    world = conda_world
    write(world.home / ".conda/tos", world.main, tos_accepted=False)
    error = refused(world, world.main, consent=consent(world.main))
    assert "were rejected" in error.what
    assert ".conda/tos" in error.why
    assert "tos accept" not in world.commands()


def test_an_acceptance_of_the_hosts_administrator_counts(conda_world: CondaWorld) -> None:
    """In conda's own directory, as `conda tos accept --system` leaves it."""
    world = conda_world
    write(world.prefix / "conda-meta/tos", world.main, tos_accepted=True)
    world.build(world.main)
    record = json.loads((world.path / environment_spec.COMPLETE).read_text())
    assert record["conda"]["terms"][world.main.url]["accepted"] is True
    assert "tos accept" not in world.commands()


def write(root: Path, channel: Channel, **changes: Any) -> Path:
    terms = {**conda_channel.TERMS, "base_url": channel.url, "tos_accepted": True,
             "acceptance_timestamp": "2026-08-01T00:00:00Z", **changes}  # fmt: skip
    moment = conda_terms.epoch(terms["version"])
    path = root / conda_terms.hash_of(channel.url) / f"{moment}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(terms))
    return path
