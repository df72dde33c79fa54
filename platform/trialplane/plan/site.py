"""What the chart installed for a team's namespace, as the laptop reads it: images, services, secrets, volumes, defaults.

The chart writes it into the ConfigMap `wire.cluster.SITE`; `plan` needs nothing else of a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trialplane.errors import TargetError
from trialplane.job import values


class _Part(BaseModel):
    # A newer chart may have fields that this version does not know.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Images(_Part):
    """The two images and how they are pulled."""

    controller: str
    trial: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()


class Service(_Part):
    """A service of the chart, in the control namespace."""

    service: str = ""
    port: int = 0


class Secret(_Part):
    """One key of a Secret."""

    name: str
    key: str


class Volume(_Part):
    """A PersistentVolumeClaim; "" is none."""

    claim: str = ""


class Checkpoints(_Part):
    """Where trials save themselves: a claim, or a URL with a Secret of variables that open it; both "" is nowhere.

    `grace` is how many seconds a training gets to save a checkpoint when its pod is evicted.
    """

    claim: str = ""
    url: str = ""
    secret: str = ""
    grace: values.Duration = 120.0


class Install(_Part):
    """What trial pods may install before their first trial, for jobs that ask for it.

    Attributes:
        enabled: whether any may.
        index: URL of the one package index (PEP 503).
        max_size: the most that an installation may take on the node's disk, its downloads among it.
        timeout: seconds that it may take.
        egress: rules that the network policies of such runs have beside the others, by which the index is reached.
    """

    enabled: bool = False
    index: str = ""
    max_size: values.Quantity = "2Gi"
    timeout: values.Duration = 600.0
    egress: tuple[dict[str, Any], ...] = ()


class Allowed(_Part):
    """What a job may ask for beside what the chart's values give every run.

    Attributes:
        priority_classes: names.
        tolerations: each allows itself and those that tolerate less.
        labels, annotations: keys of the pods; one that ends in "/" allows all keys that begin with it.
    """

    priority_classes: tuple[str, ...] = ()
    tolerations: tuple[dict[str, Any], ...] = ()
    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()


class Controller(_Part):
    """Resources of the head pod."""

    cpus: values.Cores = 1
    memory: values.Quantity = "2Gi"


class Rules(_Part):
    """Rules of a NetworkPolicy, as Kubernetes has them."""

    ingress: tuple[dict[str, Any], ...] = ()
    egress: tuple[dict[str, Any], ...] = ()


class Network(_Part):
    """What pods of a run may reach beside each other, and who may reach them: heads, heads with an autoscaler, trials."""

    enabled: bool = False
    head: Rules = Rules()
    autoscaler: Rules = Rules()
    trial: Rules = Rules()


class Site(_Part):
    """Everything that `plan` and the laptop need to know of an installed chart.

    Attributes:
        version: of the chart.
        release: its name.
        namespace: of the runs; filled in by the reader.
        control: the namespace that the chart's own pods are in; "" for that of the runs.
        images: of the pods.
        gateway: serves ledgers, logs and MLflow to the laptop and to runs.
        ledger: the database's URL, of which no run knows; the Secret is in the control namespace.
        database: host:port of the chart's PostgreSQL, from any namespace; "" for an external one.
        runs: for the runs' folders in head pods; without it they are lost with the pod.
        data: mounted read-only at `wire.cluster.DATA` in trial pods.
        checkpoints: where trials that save themselves do so, by a volume at `wire.cluster.CHECKPOINTS` or by a URL.
        install: what trial pods may install.
        controller_account, trial_account: service accounts; neither token is mounted.
        controller: resources of a head pod.
        overcommit: by how much CPU limits exceed requests; 1 except on a laptop's cluster.
        priority_class, queue: used where the job names none.
        allowed: what a job may ask for.
        autoscale: used where the job does not set it; not for a run in a queue, which admits all of its pods at once.
        node_selector, tolerations: added to those of every job's trial pods; no job has another value of a selector's label.
        env: variables for all pods of runs, a proxy's for example.
        scratch: bound of each folder that a trial pod has on its node's disk; a trial that fills it is evicted.
        run_ttl: seconds for which a Run that has ended is kept; 0 for ever.
        network: of the network policies that each run gets.
    """

    version: str
    release: str
    namespace: str = ""
    control: str = ""
    images: Images
    gateway: Service
    ledger: Secret
    database: str = ""
    runs: Volume = Volume()
    data: Volume = Volume()
    checkpoints: Checkpoints = Checkpoints()
    install: Install = Install()
    controller_account: str
    trial_account: str
    controller: Controller = Controller()
    overcommit: float = Field(default=1.0, ge=1)
    priority_class: str = ""
    queue: str = ""
    allowed: Allowed = Allowed()
    autoscale: bool = False
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    scratch: values.Quantity = "50Gi"
    run_ttl: float = Field(default=0.0, ge=0)
    network: Network = Network()

    @property
    def gateway_host(self) -> str:
        """Of the gateway, as pods of runs reach it."""
        return f"{self.gateway.service}.{self.control}.svc" if self.control else self.gateway.service

    @property
    def home(self) -> str:
        """The namespace of the chart's own pods."""
        return self.control or self.namespace

    @classmethod
    def read(cls, text: str, namespace: str) -> Site:
        """The site in the ConfigMap's JSON.

        Raises:
            TargetError: the chart is of a version that this one does not understand.
        """
        try:
            data: Mapping[str, Any] = json.loads(text)
            return cls.model_validate({**data, "namespace": namespace})
        except (ValidationError, ValueError) as error:
            raise TargetError(
                f"the chart's site description in namespace {namespace} cannot be read: {error}\n"
                "Upgrade it with `helm upgrade` to the version of this `platform`"
            ) from error
