"""Remove models from hosts: `fleet model remove` runs this.

    pyinfra -y --data models_directory=/tmp/removed --data models=Qwen--Qwen3-32B/master \
        inventories/prod.py pyinfra_deploy/deploys/remove_models.py
"""

from pathlib import Path

from pyinfra import host

from pyinfra_deploy.operations import model_steps

model_steps.remove_models(
    name="Remove models",
    models=str(host.data.models).split(","),
    llm_root=host.data.settings.llm_root,
    told=Path(host.data.models_directory) / f"{host.data.fleet['host']}.json",
)
