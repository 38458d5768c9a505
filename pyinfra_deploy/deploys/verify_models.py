"""Have hosts verify their models: `fleet model verify` runs this.

    pyinfra -y --data models_directory=/tmp/verified --data deep=yes inventories/prod.py \
        pyinfra_deploy/deploys/verify_models.py
"""

from pathlib import Path

from pyinfra import host

from pyinfra_deploy.operations import verify_steps

verify_steps.verify_models(
    name="Verify models",
    models=[name for name in str(host.data.get("models") or "").split(",") if name],
    deep=host.data.get("deep") == "yes",
    llm_root=host.data.settings.llm_root,
    told=Path(host.data.models_directory) / f"{host.data.fleet['host']}.json",
)
