"""Which host serves which model to clients, and what a group's turn takes away from them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyinfra_deploy.rollout import asking

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyinfra_deploy.settings.fleet import Fleet

# files/fleet_host/engine.py: such a drain ends by itself, an operator's does not.
DRAINED_BY_GO_LIVE = "go-live"


@dataclass(frozen=True)
class Serving:
    """now: {host: model} of all engine hosts of the inventory, not only of those of a rollout.
    coming: {host: model} of those whose engine is switched. out: those that serve no client, as
    they are drained, down or not reached. drained: of these, by an operator: a turn leaves them so.
    agreed: models that have no host to spare, which somebody was told."""

    now: Mapping[str, str] = field(default_factory=dict)
    coming: Mapping[str, str] = field(default_factory=dict)
    out: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()
    agreed: frozenset[str] = frozenset()

    def live(self, model: str | None) -> frozenset[str]:
        """Hosts of which clients get that model."""
        return frozenset(host for host, one in self.now.items() if one == model) - self.out

    def beside(self, hosts: Collection[str]) -> list[str]:
        """Engine hosts that have a model in common with those of `hosts` that are switched."""
        models = {self.now.get(host) for host in hosts if host in self.coming}
        return [host for host, model in self.now.items() if model in models]

    def may_join(self, host: str, group: Sequence[str]) -> bool:
        """Whether a group leaves one host at least to a model that has more than one."""
        live = self.live(self.now.get(host))
        switched = {one for one in (*group, host) if one in self.coming}
        return host not in live or len(live) == 1 or not live <= switched

    def taken_away(self, group: Sequence[str]) -> dict[str, str]:
        """{model: its last host} of which clients get nothing while the group has its turn. A name
        that is given up for another one is not, where others serve that already."""
        switched = {host for host in group if host in self.coming}
        found: dict[str, str] = {}
        for host in group:
            model = self.now.get(host)
            if model is None or host not in switched or host in self.out:
                continue
            if not (self.live(model) | self.live(self.coming[host])) - switched:
                found.setdefault(model, host)
        return found

    def scarce(self) -> frozenset[str]:
        """Models that one host serves at most."""
        return frozenset(model for model in self.now.values() if len(self.live(model)) < 2)

    def switched(self, hosts: Collection[str]) -> Serving:
        """They serve what was to come."""
        models = {host: self.coming[host] for host in hosts if host in self.coming}
        return replace(self, now={**self.now, **models}).back(hosts)

    def back(self, hosts: Collection[str]) -> Serving:
        """They serve what they did."""
        return replace(self, out=self.out - (frozenset(hosts) - self.drained))

    def gone(self, hosts: Collection[str]) -> Serving:
        return replace(self, out=self.out | frozenset(hosts))

    def seen(self, asked: Collection[str], answers: Mapping[str, Mapping[str, object]]) -> Serving:
        """With what `service answers` says of the hosts that were asked."""
        flags = {host: answer.get("drain") for host, answer in answers.items()}
        drained = {host for host, flag in flags.items() if flag and _by(flag) != DRAINED_BY_GO_LIVE}
        serve = {host for host in answers if answers[host].get("answers") and not flags[host]}
        models = {host: str(one["model"]) for host, one in answers.items() if one.get("model")}
        left, others = frozenset(asked), self.drained - frozenset(asked)
        return replace(
            self, now={**self.now, **models}, out=(self.out - left) | (left - serve),
            drained=others | drained,
        )  # fmt: skip


def _by(flag: object) -> object:
    return flag.get("by") if isinstance(flag, dict) else None


def look(fleet: Fleet, coming: Mapping[str, str], *, told: bool) -> Serving:
    """As it is now. told: whether somebody is told before it begins which model has no host to
    spare; else only that is taken as known which the inventory says."""
    names = {
        host: one.settings.served_model_name
        for host, one in fleet.hosts.items()
        if "gpu" in one.groups and one.settings.model is not None
    }
    before = Serving(now=names, coming=coming)
    found = look_again(fleet, before, list(names))
    return replace(found, agreed=(found if told else before).scarce())


def look_again(fleet: Fleet, before: Serving, hosts: Sequence[str]) -> Serving:
    """One real completion is asked of each of these. Who is not reached serves nobody."""
    requests = {host: {"engine": fleet.hosts[host].settings.engine.name} for host in hosts}
    return before.seen(hosts, asking.ask(fleet, "service answers", requests)) if hosts else before
