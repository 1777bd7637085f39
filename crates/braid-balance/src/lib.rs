//! The in-kernel flow datapath: BPF programs, their loader and the flow table's upkeep.
