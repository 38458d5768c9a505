from tests.fakes.rollout_host import rollout_host

__all__ = ["rollout_host"]
