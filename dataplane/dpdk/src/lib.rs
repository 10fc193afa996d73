//! Safe wrappers of DPDK: environment, ports, queues, packet buffers.
