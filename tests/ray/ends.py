"""A driver with one worker, which ends as it is told: HOW. Prints its worker's pid first."""

import os
import signal
import sys
import time

from remote.things import Thing

import twinkle
from twinkle import DeviceGroup

how = sys.argv[1]
twinkle.initialize(mode="ray", groups=[DeviceGroup("one", 1, "cpu")])
thing = Thing(remote_group="one")
print(thing.facts()()[0]["pid"], flush=True)
busy = thing.wait(100)
if how == "exception":
    raise KeyError("the script's own")
if how == "exit":
    sys.exit(3)
if how == "interrupt":  # as a terminal sends Ctrl-C: to all that the script has started, too
    os.killpg(os.getpgid(0), signal.SIGINT)
    busy()
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "terminate":
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
