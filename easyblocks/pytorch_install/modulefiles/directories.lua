
set("CONTAINERROOT", root)
set("RUNSCRIPTS", pathJoin(root, "runscripts"))
set("RUNSCRIPTSPYTORCH", pathJoin(root, "runscripts"))
set("PAYLOAD", pathJoin(root, "payload"))
set("PAYLOADPYTORCH", pathJoin(root, "payload"))
