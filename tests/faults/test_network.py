"""The wires of the network tests really lose, delay, and cut in one direction, as they are told."""

import json
import subprocess
import sys

import pytest

from tests.faults.network import Network

# Sends datagrams of one host to another, which sends each back; says how many came back and how long one took.
ECHO = """
import json, socket, sys, time
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind((sys.argv[1], 9))
if len(sys.argv) == 2:
    print("ready", flush=True)
    while True:
        one.sendto(*one.recvfrom(99))
one.settimeout(0.2)
took = []
for number in range(10):
    began = time.monotonic()
    one.sendto(str(number).encode(), (sys.argv[2], 9))
    try:
        one.recv(99)
        took.append(time.monotonic() - began)
    except TimeoutError:
        pass
print(json.dumps([len(took), sorted(took)[len(took) // 2] if took else None]))
"""


def asked(network: Network, sender: str, to: str) -> tuple[int, float]:
    command = (*network.inside(sender), sys.executable, "-c", ECHO, network.addresses[sender], network.addresses[to])
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    came_back, median_s = json.loads(done.stdout)
    return came_back, median_s


@pytest.mark.root
def test_wires_do_as_they_are_told() -> None:
    with Network(["a", "b"]) as network:
        command = (*network.inside("b"), sys.executable, "-c", ECHO, network.addresses["b"])
        with subprocess.Popen(command, stdout=subprocess.PIPE) as echo:
            assert echo.stdout is not None
            assert echo.stdout.readline() == b"ready\n"
            try:
                whole = asked(network, "a", "b")
                network.wire("a", "b", delay_ms=50)
                delayed = asked(network, "a", "b")
                network.wire("a", "b", lost=0.5)
                lossy = asked(network, "a", "b")
                network.heal()
                network.cut("b", "a")
                deaf, arrived = asked(network, "a", "b"), network.lost("b", "a")
                network.heal()
                healed = asked(network, "a", "b")
            finally:
                echo.kill()

    assert whole[0] == healed[0] == delayed[0] == 10
    assert whole[1] < 0.05 <= delayed[1]
    assert 1 <= lossy[0] <= 9
    # The questions arrived, the answers did not.
    assert (deaf[0], arrived) == (0, 10)
