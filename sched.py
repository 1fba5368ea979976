import os, torch
from pathlib import Path
from torch import nn
from training.checkpoint import Run, Checkpoints
from training.distributed import process_group
class Warm:
    def __init__(self, fn): self.fn=fn; self.n=0
    def step(self): self.n+=1; return self.fn(self.n)
    def state_dict(self): return self.__dict__
    def load_state_dict(self, s): self.__dict__.update(s)
with process_group(os.environ, use_gpu=False, timeout=60) as world:
    net=nn.Linear(2,1); opt=torch.optim.SGD(net.parameters(), lr=.1); s=Warm(lambda n:n)
    cp=Checkpoints(Path("d6"), world); cp.prepare(restart=True)
    run=Run(net,opt,s,{"e":1},world); print("resume", run.resume(cp)); 
    try: print(s.step())
    except AttributeError as e: print("AttributeError:", e)
