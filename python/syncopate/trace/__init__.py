"""What happened in one call of a fused kernel: when each chunk was made, sent, summed and had arrived, and when each tile
waited and ran.

    recorded = trace.record(fused, grid, a, b, c, M, N, K, …)     # one call, as fused[grid](…); collective
    trace.write([…every rank's…], "trace.json")                   # opens in https://ui.perfetto.dev
    trace.write([…every rank's…], "trace.png")                    # a picture, and trace.json beside it

Recording runs a variant of the emitted kernel (syncopate.device.traced) and watches the chunks' signals from beside
it: a thread on the host, one warp in a second stream on a GPU. A call that is not recorded pays nothing.

Times are nanoseconds of the host's CLOCK_MONOTONIC, one for all ranks of a machine. A GPU's own clock (%globaltimer, tens
of microseconds apart between the GPUs of one machine) is set against it after the call (syncopate.trace.clock); what
may be wrong by that is `Trace.clock_error`. A tile's end is the moment when its program asks for its next tile; where
Triton pipelines across tiles that is a few iterations early. A chunk is sent from when it is made to when its receiver
sees it, its time in a queue included. A sum that nothing waits for by a signal ends with the call and is not shown.
"""

from .model import Arrival, Made, Send, TileRun, Trace
from .record import Recorder, assemble, record, write

__all__ = ["Arrival", "Made", "Recorder", "Send", "TileRun", "Trace", "assemble", "record", "write"]
