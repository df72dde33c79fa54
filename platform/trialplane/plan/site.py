"""Description of the chart in a team's namespace: images, services, secrets, volumes, defaults.

The chart writes it into the ConfigMap `wire.cluster.SITE`. `plan` needs nothing else from a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trialplane.errors import TargetError
from trialplane.job import values
from trialplane.wire.costs import Prices


class _Part(BaseModel):
    """Base of the parts of a site description."""

    # A newer chart may have fields that this version does not know.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Images(_Part):
    """The two images, and how they are pulled."""

    controller: str
    trial: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()


class Service(_Part):
    """A service of the chart in the control namespace."""

    service: str = ""
    port: int = 0


class GatewayService(Service):
    """The gateway.

    Attributes:
        tls: Whether it serves HTTPS. The ConfigMap of the site then has the authority of its certificate.
    """

    tls: bool = False

    @property
    def scheme(self) -> str:
        """Scheme of its URLs."""
        return "https" if self.tls else "http"


class Secret(_Part):
    """A key of a Secret."""

    name: str
    key: str


class Volume(_Part):
    """A PersistentVolumeClaim. "" for none."""

    claim: str = ""


class CheckpointDefaults(_Part):
    """Location of checkpoints: a claim, or a URL with a Secret of credentials. Both are "" if there is none.

    `grace` is the number of seconds for saving a checkpoint when a pod is evicted.
    """

    claim: str = ""
    url: str = ""
    secret: str = ""
    grace: values.Duration = 120.0


class Install(_Part):
    """Limits of the packages that trial pods may install for a job with `install: true`.

    Attributes:
        enabled: Whether installations are allowed.
        index: URL of the only package index (PEP 503).
        max_size: Maximum size of an installation on the node's disk, including downloads.
        timeout: Maximum duration of an installation in seconds.
        egress: Additional network rules of such runs, for access to the index.
    """

    enabled: bool = False
    index: str = ""
    max_size: values.Quantity = "2Gi"
    timeout: values.Duration = 600.0
    egress: tuple[dict[str, Any], ...] = ()


class Allowed(_Part):
    """Values of `cluster` that a job may set in addition to the chart's defaults.

    Attributes:
        priority_classes: Names of priority classes.
        tolerations: Tolerations. Each also allows narrower ones.
        labels, annotations: Keys. One that ends in "/" allows all keys that start with it.
    """

    priority_classes: tuple[str, ...] = ()
    tolerations: tuple[dict[str, Any], ...] = ()
    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()


class SitePrices(_Part):
    """Prices of an hour of a GPU and of a CPU core. 0 if unknown."""

    gpu_hour: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    cpu_hour: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @property
    def plain(self) -> Prices:
        """The prices in the form of `wire.costs`."""
        return Prices(self.gpu_hour, self.cpu_hour)


class GpuShare(_Part):
    """A share of a GPU that nodes offer as a resource of their own.

    Attributes:
        gpus: Size of the share, between 0 and 1.
        resource: Name of its resource. A pod requests one unit of it.
        sharing: Kind of sharing. `timeSlicing` does not limit the memory of a share. `mps` does, and `mig` devices have
            memory of their own.
    """

    gpus: float = Field(gt=0, lt=1)
    resource: str
    sharing: Literal["timeSlicing", "mps", "mig"] = "timeSlicing"


class HeadResources(_Part):
    """Resources of the head pod."""

    cpus: values.Cores = 1
    memory: values.Quantity = "2Gi"


class NetworkRules(_Part):
    """Rules of a NetworkPolicy in the form of the Kubernetes API."""

    ingress: tuple[dict[str, Any], ...] = ()
    egress: tuple[dict[str, Any], ...] = ()


class Network(_Part):
    """Network access of a run's pods beyond each other: head pods, head pods with an autoscaler, trial pods."""

    enabled: bool = False
    head: NetworkRules = NetworkRules()
    autoscaler: NetworkRules = NetworkRules()
    trial: NetworkRules = NetworkRules()


class Site(_Part):
    """Description of an installed chart, for `plan` and the laptop.

    Attributes:
        version: Version of the chart.
        release: Name of the Helm release.
        namespace: Namespace of the runs; set by the reader.
        control: Namespace of the chart's own pods; "" if it is that of the runs.
        images: Images of the pods.
        gateway: Service with ledgers, logs and MLflow for laptops and runs.
        ledger: Secret with the database's URL, in the control namespace; not visible to runs.
        database: host:port of the chart's PostgreSQL, from any namespace; "" for an external one.
        runs: Volume for the runs' folders in head pods; without it they are lost with the pod.
        data: Volume mounted read-only at `wire.cluster.DATA` in trial pods.
        checkpoints: Location of checkpoints: a volume at `wire.cluster.CHECKPOINTS`, or a URL.
        install: Limits of packages that trial pods may install.
        controller_account, trial_account: Service accounts; neither token is mounted.
        controller: Resources of a head pod.
        overcommit: Factor between CPU limits and requests; 1 except on a laptop's cluster.
        priority_class, queue: Defaults for jobs that name none.
        allowed: Values that a job may set.
        autoscale: Default for jobs; ignored for a run in a queue, which admits all pods at once.
        node_selector, tolerations: Added to those of every job's trial pods; a job cannot override a selector's label.
        env: Variables for all pods of runs, for example a proxy's.
        scratch: Size limit of each folder on the node's disk in a trial pod; exceeding it evicts the pod.
        prices: Prices for budgets of money.
        gpu_shares: Shares of GPUs that the nodes offer.
        run_ttl: Seconds for which an ended Run is kept; 0 for ever.
        network: Network access of runs.
    """

    version: str
    release: str
    namespace: str = ""
    control: str = ""
    images: Images
    gateway: GatewayService
    ledger: Secret
    database: str = ""
    runs: Volume = Volume()
    data: Volume = Volume()
    checkpoints: CheckpointDefaults = CheckpointDefaults()
    install: Install = Install()
    controller_account: str
    trial_account: str
    controller: HeadResources = HeadResources()
    overcommit: float = Field(default=1.0, ge=1)
    priority_class: str = ""
    queue: str = ""
    allowed: Allowed = Allowed()
    autoscale: bool = False
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    scratch: values.Quantity = "50Gi"
    prices: SitePrices = SitePrices()
    gpu_shares: tuple[GpuShare, ...] = ()
    run_ttl: float = Field(default=0.0, ge=0)
    network: Network = Network()

    @property
    def gateway_url(self) -> str:
        """URL of the gateway for pods of runs."""
        host = f"{self.gateway.service}.{self.control}.svc" if self.control else self.gateway.service
        return f"{self.gateway.scheme}://{host}:{self.gateway.port}"

    @property
    def home(self) -> str:
        """The namespace of the chart's own pods."""
        return self.control or self.namespace

    @classmethod
    def read(cls, text: str, namespace: str) -> Site:
        """Return the site from the ConfigMap's JSON.

        Raises:
            TargetError: The text is not a site description of this version.
        """
        try:
            data: Mapping[str, Any] = json.loads(text)
            return cls.model_validate({**data, "namespace": namespace})
        except (ValidationError, ValueError) as error:
            raise TargetError(
                f"the chart's site description in namespace {namespace} cannot be read: {error}\n"
                "Upgrade it with `helm upgrade` to the version of this `platform`"
            ) from error
