"""etcd, API server, controller manager and scheduler as plain processes: a real Kubernetes API in a few seconds."""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from lab import paths
from lab.cluster.kubeconfig import write_kubeconfig
from lab.cluster.kubectl import Kubectl
from lab.cluster.network import SERVICE_RANGE
from lab.cluster.pki import Authority
from lab.cluster.ports import free_ports
from lab.process import Arguments, Daemon
from lab.setup.kube import kube_binaries
from lab.setup.prerequisites import require_control_plane_programs
from lab.waiting import answers, wait_for

KUBERNETES_SERVICE = "198.19.0.1"

_NICE = -5
"""Above the workloads: on two cores a trainer must not starve the API server that judges it."""

_COLLECT_LESS_OFTEN = "GOGC=400"
"""A small cluster's garbage is a sixth of what its API server computes; memory is there."""

_POLICY = Path(__file__).with_name("audit-policy.yaml")


@dataclass(frozen=True)
class Ports:
    """Where a control plane listens."""

    etcd: int
    etcd_peer: int
    api: int


class ControlPlane:
    """A Kubernetes control plane in a folder of its own. Several run side by side.

    Use it as a context manager; it is ready when `with` is entered, and its data is gone with its folder. `address` is
    where pods reach it: the loopback address will do where there are none. A detached one outlives the program that
    started it, and another program takes it up again by giving the same folder. `api_flags` are added to the API
    server's own, for example to leave out an API. `programs` is a folder with the API server, the controller manager
    and the scheduler of another version (`lab.setup.older`); etcd and kubectl stay the lab's own.
    """

    def __init__(
        self,
        directory: Path,
        *,
        address: str = "127.0.0.1",
        detached: bool = False,
        api_flags: Sequence[str] = (),
        programs: Path | None = None,
    ) -> None:
        self.directory = directory
        self.address = address
        self._detached = detached
        self._more_api_flags = api_flags
        self._programs = programs or paths.BIN
        self.authority = Authority(directory / "pki")
        self._etcd_authority = Authority(directory / "etcd-pki")
        """Of its own: no user of the cluster is a client of etcd."""
        self._ports = self._settle_ports()
        self.server = f"https://{address}:{self._ports.api}"
        self.kubeconfig = directory / "admin.kubeconfig"
        """Credentials of a cluster administrator."""
        self.audit_log = directory / "audit.log"
        """One JSON event a line, written before the request is answered."""
        self.kubectl = Kubectl(paths.BIN / "kubectl", self.kubeconfig)
        self._etcd = self._daemon("etcd", *self._etcd_flags())
        self._api = self._daemon("kube-apiserver", *self._api_flags())
        self._controllers = self._daemon("kube-controller-manager", *self._controller_flags())
        self._scheduler = self._daemon("kube-scheduler", *self._scheduler_flags())

    def __enter__(self) -> ControlPlane:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start what does not run, and wait until pods can be made."""
        require_control_plane_programs()
        kube_binaries()
        self.authority.ensure()
        self.user_kubeconfig("admin", groups=["system:masters"])
        self.user_kubeconfig("system:kube-controller-manager")
        self.user_kubeconfig("system:kube-scheduler")
        self.authority.issue("apiserver-kubelet-client", "kube-apiserver", groups=["system:masters"])
        names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ]
        self.authority.issue("apiserver", "kube-apiserver", addresses=[*names, KUBERNETES_SERVICE, self.address])
        self._etcd_authority.ensure()
        self._etcd_authority.issue("etcd", "etcd", addresses=["127.0.0.1"])
        self._etcd_authority.issue("apiserver", "kube-apiserver")
        self._etcd.start()
        self.start_apiserver()
        self._controllers.start()
        self._scheduler.start()
        self.kubectl.wait_for_namespace("default")

    def stop(self) -> None:
        """Stop everything, last started first. Data stays in the folder; `start` takes it up again."""
        self.stop_controllers()
        self.stop_apiserver()
        self._etcd.stop()

    def stop_controllers(self) -> None:
        """Stop what makes and places pods, so that deleted ones stay deleted; the API goes on."""
        self._scheduler.stop()
        self._controllers.stop()

    def stop_apiserver(self) -> None:
        """Take the API away, as an upgrade or a crash of the API server does; etcd, controllers and scheduler go on."""
        self._api.stop(grace=2)  # watchers would hold a graceful end open for a minute

    def start_apiserver(self) -> None:
        """Bring the API back on the same port, and wait until it is ready."""
        self._api.start()
        wait_for(self._ready, what="the API server to be ready", seconds=90, every=0.1, found=lambda: self._api.tail())

    def kill_apiserver(self) -> None:
        """Let the API server crash; `start_apiserver` brings it back."""
        self._api.kill_running()

    def kill_etcd(self) -> None:
        """Let etcd crash; the API server goes on. What etcd acknowledged is in the kernel's cache, which outlives a process:
        no write is lost, though etcd never syncs.
        """
        self._etcd.kill_running()

    def start_etcd(self) -> None:
        """Bring etcd back on the same port, with its data, and wait until the API is ready again."""
        self._etcd.start()
        self.start_apiserver()

    def running(self) -> bool:
        """Tell whether all four programs run."""
        return all(daemon.running() for daemon in (self._etcd, self._api, self._controllers, self._scheduler))

    @property
    def etcd(self) -> str:
        """Where etcd listens, to clients with a certificate of its own authority."""
        return f"https://127.0.0.1:{self._ports.etcd}"

    @property
    def logs(self) -> list[Path]:
        """The programs' own logs."""
        return [daemon.log for daemon in (self._etcd, self._api, self._controllers, self._scheduler)]

    def user_kubeconfig(self, user: str, *, groups: Sequence[str] = ()) -> Path:
        """Write credentials for any user, with the groups given; what the user may do is RBAC's business."""
        name = user.replace(":", "-")
        return write_kubeconfig(
            self.directory / f"{name}.kubeconfig",
            server=self.server,
            authority=self.authority.certificate,
            name=user,
            certificate=self.authority.issue(name, user, groups=groups),
        )

    def service_account_token(self, namespace: str, name: str, *, seconds: int = 86400) -> str:
        """Mint a token for a ServiceAccount that exists."""
        return self.kubectl("create", "token", name, "-n", namespace, f"--duration={seconds}s").stdout.strip()

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """Write credentials of a ServiceAccount that exists: a program outside the cluster then has its rights, no
        more.
        """
        return write_kubeconfig(
            self.directory / f"sa-{namespace}-{name}.kubeconfig",
            server=self.server,
            authority=self.authority.certificate,
            name=f"system:serviceaccount:{namespace}:{name}",
            token=self.service_account_token(namespace, name),
            namespace=namespace,
        )

    def _ready(self) -> bool:
        self._etcd.require_running()
        self._api.require_running()
        admin = self.authority.issue("admin", "admin", groups=["system:masters"])
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(admin.certificate, admin.key)
        return answers(f"{self.server}/readyz", context)

    def _daemon(self, command: str, *flags: str) -> Daemon:
        folder = paths.BIN if command == "etcd" else self._programs
        program: Arguments = ["env", _COLLECT_LESS_OFTEN, folder / command, *flags]
        return Daemon(command, program, self.directory, detached=self._detached, nice=_NICE)

    def _settle_ports(self) -> Ports:
        """Choose ports once for a folder: kubeconfigs, and a restarted API server, must agree on them."""
        record = self.directory / "ports.json"
        if record.exists():
            return Ports(**json.loads(record.read_text()))
        self.directory.mkdir(parents=True, exist_ok=True)
        ports = Ports(*free_ports(3))
        record.write_text(json.dumps(asdict(ports)))
        return ports

    def _etcd_flags(self) -> list[str]:
        client, peer = self.etcd, f"https://127.0.0.1:{self._ports.etcd_peer}"
        pki = self.directory / "etcd-pki"
        secured = [
            f"--{whose}{flag}"
            for whose in ("", "peer-")
            for flag in (
                "client-cert-auth=true",
                f"trusted-ca-file={self._etcd_authority.certificate}",
                f"cert-file={pki / 'etcd.crt'}",
                f"key-file={pki / 'etcd.key'}",
            )
        ]
        return [
            *secured,
            f"--data-dir={self.directory / 'etcd'}",
            "--unsafe-no-fsync",  # the data is worth no more than the folder
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]

    def _api_flags(self) -> list[str]:
        pki, etcd_pki = self.directory / "pki", self.directory / "etcd-pki"
        return [
            f"--etcd-servers={self.etcd}",
            f"--etcd-cafile={self._etcd_authority.certificate}",
            f"--etcd-certfile={etcd_pki / 'apiserver.crt'}",
            f"--etcd-keyfile={etcd_pki / 'apiserver.key'}",
            f"--secure-port={self._ports.api}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--client-ca-file={self.authority.certificate}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--kubelet-client-certificate={pki / 'apiserver-kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'apiserver-kubelet-client.key'}",
            f"--kubelet-certificate-authority={self.authority.certificate}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.authority.service_account_public_key}",
            f"--service-account-signing-key-file={self.authority.service_account_key}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            f"--audit-policy-file={_POLICY}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-mode=blocking",
            "--audit-log-maxsize=2000",
            "--profiling=false",
            *self._more_api_flags,
        ]

    def _controller_flags(self) -> list[str]:
        return [
            f"--kubeconfig={self.directory / 'system-kube-controller-manager.kubeconfig'}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.authority.service_account_key}",
            f"--root-ca-file={self.authority.certificate}",
            "--leader-elect=false",
            "--secure-port=0",
            "--profiling=false",
            # The default of 20 a second makes a thousand Deployments in ten minutes.
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ]

    def _scheduler_flags(self) -> list[str]:
        return [
            f"--kubeconfig={self.directory / 'system-kube-scheduler.kubeconfig'}",
            "--leader-elect=false",
            "--secure-port=0",
            "--profiling=false",
        ]
