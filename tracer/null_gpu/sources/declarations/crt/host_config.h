/* Nothing of <crt/host_config.h> is used in C on the host. */
