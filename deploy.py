"""Bare hosts in, a production LLM service out.

    pyinfra inventories/prod.py deploy.py

Every host is read once and planned; a host that would fail is refused before anything changes on
it. Then each step brings what its host lacks, and a second run changes nothing.
"""

from pyinfra_deploy.deploys.steps import (
    between_hosts,
    driver,
    engine,
    finish,
    gateway,
    gpu_host,
    model,
    plan_this_host,
    runtime,
    take_host,
    verify,
)

plan = plan_this_host()

if plan is not None:
    take_host(plan=plan)  # one run at a time on a host
    gpu_host(plan=plan)  # packages, users, directories, units, kernel settings
    driver(plan=plan)  # where gpu_driver is install and it is missing; then nothing else this time

    runtime(plan=plan)  # the installer and vLLM, from locks
    if plan.on("gpu"):
        model(plan=plan)  # pulled on the host, verified to the byte
        engine(plan=plan)  # switched to, proven by a real completion, or back

    between_hosts(plan=plan)  # mutual TLS: a certificate, and to an engine's host the way in
    if plan.on("gateway"):
        gateway(plan=plan)  # TLS, keys, limits, streams
        verify(plan=plan)  # as a client, through HTTPS

    finish(plan=plan)
