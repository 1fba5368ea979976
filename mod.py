import os, sys, torch
from pathlib import Path
from torch import nn
from training.checkpoint import Run, Checkpoints
from training.distributed import process_group
from training.failing import fail_in_one_line
class Metric(nn.Module):   # as torchmetrics with persistent states
    def __init__(self): super().__init__(); self.register_buffer("total", torch.zeros(()))
with fail_in_one_line(), process_group(os.environ, use_gpu=False, timeout=60) as world:
    torch.manual_seed(0); m=Metric()
    net=nn.Linear(8,4); opt = torch.optim.AdamW(net.parameters(), lr=.1)
    cp=Checkpoints(Path("d5"), world); cp.prepare()
    run = Run(net, opt, None, {"epochs": 3}, world, extra={"metric":m}); r=run.resume(cp)
    if r: print(f"rank {world.rank}: resumed total={m.total.item()}", flush=True)
    else:
        m.total += 1+world.rank; run.position.step+=1; run.save(cp); print(f"rank {world.rank}: saved total={m.total.item()}", flush=True)
