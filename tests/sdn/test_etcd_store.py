"""The store of several controllers with a real etcd: who leads, and what is kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path

import pytest

from braid_lab.fabric.etcd import EtcdServer, etcd
from braid_sdn.fabric import service
from braid_sdn.fabric.cluster.etcd import Endpoint, Etcd, put
from braid_sdn.fabric.cluster.etcd_store import ClusterSettings, EtcdStore, boot_time
from braid_sdn.fabric.cluster.file_store import POLICIES_FILE
from braid_sdn.fabric.cluster.store import Member, StoreError
from braid_sdn.fabric.config import Config
from braid_sdn.fabric.plan.policies import Policies
from braid_sdn.fabric.settings import Settings

from .test_openflow import certificates
from .virtual import KEY

DRAINED = Policies(frozenset({3}))
#: Seconds; etcd grants no shorter lease.
LEASE = 2.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd(tmp_path_factory.mktemp("etcd")) as made:
        yield made


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.name}"


def settings(
    server: EtcdServer, prefix: str, name: str, *, lease: float = LEASE, digest: str = ""
) -> ClusterSettings:
    return ClusterSettings(Member(name), (Endpoint("127.0.0.1", server.port),), prefix, lease, digest=digest)


@contextlib.asynccontextmanager
async def following(store: EtcdStore) -> AsyncIterator[EtcdStore]:
    """Run a store for the length of a block, after which it steps down."""
    task = asyncio.create_task(store.run(lambda: None))
    try:
        yield store
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def frozen(store: EtcdStore) -> AsyncIterator[EtcdStore]:
    """Have a store ask once, and never again by itself: as one that was killed, or stopped."""
    await store._look()
    try:
        yield store
    finally:
        store._etcd.close()
        # Connections end in the loop's next turn.
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], within: float = 20.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


def told(story: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


def codes(store: EtcdStore) -> set[str]:
    return {each.code for each in store.problems()}


def test_one_leads_and_the_other_reads_what_it_keeps(server: EtcdServer, prefix: str) -> None:
    async def story() -> None:
        alpha, beta = (EtcdStore(settings(server, prefix, name), Policies()) for name in ("alpha", "beta"))
        async with following(alpha):
            await until(alpha.leads)
            async with following(beta):
                await until(lambda: beta.standing.leader == Member("alpha"))
                await alpha.keep(DRAINED)
                await until(lambda: beta.standing.policies == DRAINED)
                assert not beta.leads()
                assert alpha.standing.generation == beta.standing.generation > 0
                with pytest.raises(StoreError, match="alpha leads, so nothing was changed here") as refused:
                    await beta.keep(Policies())
                assert refused.value.status == 409
                assert not codes(alpha) | codes(beta)

    told(story)


def test_a_leader_that_is_gone_is_followed_once_its_lease_is_over(server: EtcdServer, prefix: str) -> None:
    async def story() -> None:
        alpha, beta = (EtcdStore(settings(server, prefix, name), Policies()) for name in ("alpha", "beta"))
        async with frozen(alpha), following(beta):
            assert alpha.leads()
            await alpha.keep(DRAINED)
            while not beta.leads():
                led = alpha.leads()
                await asyncio.sleep(0.01)
                # Never both: the old one stops by itself before.
                assert not (led and alpha.leads() and beta.leads())
            assert not alpha.leads()
            assert beta.standing.generation > alpha.standing.generation
            assert beta.standing.policies == DRAINED

    told(story)


def test_one_whose_clock_stood_still_writes_nothing(server: EtcdServer, prefix: str) -> None:
    async def story() -> None:
        alpha = EtcdStore(settings(server, prefix, "alpha"), Policies(), clock=lambda: 0.0)
        beta = EtcdStore(settings(server, prefix, "beta"), Policies())
        async with frozen(alpha), following(beta):
            await until(beta.leads)
            assert alpha.leads()
            with pytest.raises(StoreError, match="beta leads") as refused:
                await alpha.keep(DRAINED)
            assert refused.value.status == 409
            assert not alpha.leads()
            await beta._look()
            assert beta.standing.policies == Policies()

    told(story)


def test_one_that_ends_makes_room_at_once(server: EtcdServer, prefix: str) -> None:
    async def story() -> None:
        alpha, beta = (EtcdStore(settings(server, prefix, name, lease=6), Policies()) for name in ("alpha", "beta"))
        async with following(alpha):
            await until(alpha.leads)
        began = boot_time()
        async with following(beta):
            await until(beta.leads)
        assert boot_time() - began < 5

    told(story)


def test_without_etcd_the_leader_stops_in_time_and_leads_again_afterwards(server: EtcdServer, prefix: str) -> None:
    async def story() -> None:
        alpha = EtcdStore(settings(server, prefix, "alpha"), Policies())
        async with following(alpha):
            await until(alpha.leads)
            with server.paused():
                began = boot_time()
                await until(lambda: codes(alpha) == {"etcd-silent"})
                assert alpha.leads()
                with pytest.raises(StoreError, match="nobody knows whether it is kept") as refused:
                    await alpha.keep(DRAINED)
                assert refused.value.status == 503
                await until(lambda: not alpha.leads())
                assert boot_time() - began < LEASE
                assert "nobody here knows who leads" in alpha.problems()[0].text
                assert alpha.standing.leader is None
                with pytest.raises(StoreError, match="no controller leads"):
                    await alpha.keep(DRAINED)
            await until(alpha.leads)
            await until(lambda: not codes(alpha))

    told(story)


def test_policies_from_before_there_was_an_etcd_are_written_there(server: EtcdServer, prefix: str) -> None:
    async def story() -> None:
        alpha = EtcdStore(settings(server, prefix, "alpha"), DRAINED)
        beta = EtcdStore(settings(server, prefix, "beta"), Policies(frozenset({9})))
        async with contextlib.AsyncExitStack() as stack:
            async with following(alpha):
                await until(alpha.leads)
                await stack.enter_async_context(following(beta))
                await until(lambda: beta.standing.policies == DRAINED)
            await until(beta.leads)
            assert beta.standing.policies == DRAINED

    told(story)


def test_a_file_that_cannot_be_read_is_named_until_etcd_has_policies(
    server: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    file = tmp_path / POLICIES_FILE
    file.write_text("[")

    def store(name: str) -> EtcdStore:
        made = service._store(Config(Settings(KEY), cluster=settings(server, prefix, name)), tmp_path)
        assert isinstance(made, EtcdStore)
        return made

    async def story() -> None:
        alpha, beta = store("alpha"), store("beta")
        async with following(alpha), following(beta):
            await until(lambda: alpha.leads() or beta.leads())
            leader, other = (alpha, beta) if alpha.leads() else (beta, alpha)
            await until(lambda: other.standing.leader == leader.me)
            for each in (leader, other):
                assert each.standing.policies == Policies()
                assert each.standing.unread.startswith(f"{file}: ")
            await leader.keep(DRAINED)
            await until(lambda: other.standing.policies == DRAINED)
            assert (leader.standing.unread, other.standing.unread) == ("", "")
        assert file.read_text() == "["

    told(story)


def test_policies_are_followed_until_others_can_be_read(server: EtcdServer, prefix: str) -> None:
    async def story() -> None:
        client = Etcd([Endpoint("127.0.0.1", server.port)])
        async with frozen(EtcdStore(settings(server, prefix, "alpha"), DRAINED)) as alpha:
            await client.change((), [put(f"{prefix}/policies", "{")], [], 5)
            await alpha._look()
            assert alpha.standing.policies == DRAINED
            assert f"{prefix}/policies of etcd: " in alpha.standing.unread
            await alpha.keep(Policies())
            assert (alpha.standing.policies, alpha.standing.unread) == (Policies(), "")
        client.close()

    told(story)


def test_a_files_policies_are_not_followed_where_those_of_etcd_cannot_be_read(
    server: EtcdServer, prefix: str
) -> None:
    """They may be undone since long ago."""

    async def story() -> None:
        client = Etcd([Endpoint("127.0.0.1", server.port)])
        await client.change((), [put(f"{prefix}/policies", "{")], [], 5)
        async with frozen(EtcdStore(settings(server, prefix, "alpha"), DRAINED)) as alpha:
            assert alpha.leads()
            assert alpha.standing.policies == Policies()
            assert f"{prefix}/policies of etcd: " in alpha.standing.unread
        client.close()

    told(story)


def test_what_cannot_be_read_is_named_and_written_anew(server: EtcdServer, prefix: str) -> None:
    async def story() -> None:
        client = Etcd([Endpoint("127.0.0.1", server.port)])
        await client.change((), [put(f"{prefix}/policies", "[]"), put(f"{prefix}/leader", "x")], [], 5)
        async with frozen(EtcdStore(settings(server, prefix, "alpha"), Policies())) as alpha:
            assert not alpha.leads()
            assert alpha.standing.leader == Member("a controller of another kind")
            assert f"{prefix}/policies of etcd: not policies" in alpha.standing.unread
            await client.ask("/v3/kv/deleterange", {"key": put(f"{prefix}/leader", "")["key"]}, 5)
            await alpha._look()
            await alpha.keep(DRAINED)
            assert (alpha.standing.policies, alpha.standing.unread) == (DRAINED, "")
        client.close()

    told(story)


def test_controllers_of_different_configurations_are_told_apart(server: EtcdServer, prefix: str) -> None:
    async def story() -> None:
        alpha = EtcdStore(settings(server, prefix, "alpha", digest="1"), Policies())
        beta = EtcdStore(settings(server, prefix, "beta", digest="2"), Policies())
        async with following(alpha):
            await until(alpha.leads)
            async with following(beta):
                await until(lambda: codes(beta) == {"cluster-config"})
                assert not codes(alpha)

    told(story)


def test_a_configuration_that_was_read_anew_is_compared_from_then_on(server: EtcdServer, prefix: str) -> None:
    async def story() -> None:
        alpha, beta = (
            EtcdStore(settings(server, prefix, name, digest="1"), Policies()) for name in ("alpha", "beta")
        )
        async with following(alpha):
            await until(alpha.leads)
            async with following(beta):
                await until(lambda: beta.standing.leader is not None)
                generation = alpha.standing.generation
                assert codes(beta) == set()
                # The one that leads, and then the other one.
                alpha.set_digest("2")
                await until(lambda: codes(beta) == {"cluster-config"})
                beta.set_digest("2")
                assert codes(beta) == set()
                assert alpha.leads()
                assert alpha.standing.generation == beta.standing.generation == generation

    told(story)


def test_another_server_is_asked_where_one_does_not_answer(server: EtcdServer, prefix: str) -> None:
    async def story() -> None:
        nowhere = Endpoint("127.0.0.1", 1)
        endpoints = nowhere, Endpoint("127.0.0.1", server.port)
        alpha = EtcdStore(ClusterSettings(Member("alpha"), endpoints, prefix, LEASE), Policies())
        async with following(alpha):
            await until(alpha.leads, within=LEASE)

    told(story)


def test_both_sides_show_certificates(tmp_path: Path, prefix: str) -> None:
    files = certificates(tmp_path)
    options = ["--cert-file", str(tmp_path / "server.pem"), "--key-file", str(tmp_path / "server.key")]
    options += ["--trusted-ca-file", str(files.authority), "--client-cert-auth"]
    with etcd(tmp_path, None, *options, scheme="https") as server:

        async def story() -> None:
            # The name in the server's certificate.
            at = Endpoint("localhost", server.port, is_tls=True)
            alpha = EtcdStore(ClusterSettings(Member("alpha"), (at,), prefix, LEASE, files), Policies())
            async with following(alpha):
                await until(alpha.leads)

        told(story)


NOT_ETCD = [b"[]", b"{}", b'{"ID": "x"}', b'{"ID": "1", "TTL": "2", "responses": [1]}', b"\xff"]


@pytest.mark.parametrize("body", NOT_ETCD)
def test_what_is_not_etcd_is_named(body: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Also where the store does not wait for the answer.
        with contextlib.closing(writer), contextlib.suppress(OSError, EOFError):
            await reader.readuntil(b"}")
            head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % len(body) + body)
            await writer.drain()

    async def story() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as web:
            at = Endpoint("127.0.0.1", web.sockets[0].getsockname()[1])
            async with frozen(EtcdStore(ClusterSettings(Member("alpha"), (at,), lease=60.0), Policies())) as alpha:
                assert "etcd's v3 gateway" in alpha.problems()[0].text

    told(story)


def test_keys_and_values_are_what_other_clients_read(server: EtcdServer, prefix: str) -> None:
    async def story() -> None:
        client = Etcd([Endpoint("127.0.0.1", server.port)])
        async with frozen(EtcdStore(settings(server, prefix, "alpha"), DRAINED)):
            leader, kept = await client.read([f"{prefix}/leader", f"{prefix}/policies"], 5)
        assert leader is not None
        assert kept is not None
        assert json.loads(leader.value)["name"] == "alpha"
        assert Policies.stored(json.loads(kept.value)) == DRAINED
        client.close()

    told(story)


def test_generations_go_on_where_etcd_was_set_up_anew(server: EtcdServer, prefix: str) -> None:
    """Its revisions begin at 1 again, and switches know higher ones."""

    async def story() -> None:
        alpha, beta = (EtcdStore(settings(server, prefix, name), Policies()) for name in ("alpha", "beta"))
        async with following(alpha):
            await until(alpha.leads)
            # A switch that lies pushes it nowhere.
            await alpha.surpass((1 << 64) - 1)
            assert alpha.standing.generation < 1 << 20
            await alpha.surpass(1 << 40)
            assert alpha.standing.generation == (1 << 40) + 1
            await alpha.surpass(5)
            assert alpha.standing.generation == (1 << 40) + 1
            for number in range(10):
                await alpha.surpass((1 << 41) + 10 * number)
            # Two that surpass one another come to an end.
            assert alpha.standing.generation == (1 << 41) + 11
        async with following(beta):
            await until(beta.leads)
            assert beta.standing.generation > (1 << 41) + 11
            await beta.surpass(1 << 42)
            assert beta.standing.generation == (1 << 42) + 1

    told(story)
