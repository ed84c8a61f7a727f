import os, sys, time
steps, wait, loaders = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
pids = []
for k in range(int(loaders + .999)):
    pid = os.fork()
    if pid == 0: # a loader: busy for a part of each 20 ms
        part = .02 * min(1, loaders - k)
        while True:
            t = time.process_time()
            while time.process_time() - t < part: pass
            time.sleep(.02 - part)
    pids.append(pid)
import torch
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
end = torch.cuda.Event(blocking=True) # waits without a busy processor
for _ in range(steps):
    for _ in range(14): a @ b
    end.record(); end.synchronize()
    time.sleep(wait)
for pid in pids:
    os.kill(pid, 15)
    os.wait()
