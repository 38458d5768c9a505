from tests.fakes.repository import empty, repository
from tests.fakes.rollout_host import rollout_host

__all__ = ["empty", "repository", "rollout_host"]
