"""Build runtime and model beside what hosts run: `fleet rollout` does this on all of them before it
switches the first.

    pyinfra -y inventories/prod.py pyinfra_deploy/deploys/build_early.py

Nothing that runs is touched, and a host on which anything else has to change is left to its turn
(planning/early.py).
"""

from pyinfra_deploy.deploys.steps import model, plan_this_host, runtime, take_host
from pyinfra_deploy.planning.early import built_early

plan = plan_this_host()

if plan is not None and built_early(plan):
    take_host(plan=plan)
    runtime(plan=plan)
    model(plan=plan)
