/* Symbols of libibverbs.so.1 with several versions: drivers of rdma-core bind to those of IBVERBS_PRIVATE_*, and
 * programs built before 2007 to those of IBVERBS_1.0. Nearly all of these functions fail with EOPNOTSUPP.
 *
 * Some programs link the drivers libmlx5.so.1 and libefa.so.1 to call functions that only these drivers have. The
 * drivers register themselves when they are loaded. This registration has no effect, so no driver gets a device.
 * IBVERBS_PRIVATE_* has the number 34 in rdma-core 39 to 56, 59 in 60, and 64 in 64. */

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

/* Replaces functions that return an error number, or nothing. */
int verbs_refuse(void) {
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

/* Replaces functions that return a pointer. */
void *verbs_refuse_pointer(void) {
    errno = EOPNOTSUPP;
    return NULL;
}

/* ibv_get_device_list of IBVERBS_1.0: there are no devices for the structures of that version. */
void *verbs_no_devices(int *number) {
    if (number)
        *number = 0;
    errno = ENOSYS;
    return NULL;
}

/* Value of verbs_allow_disassociate_destroy, which drivers read. */
bool verbs_false;

extern int ibv_query_gid_type(void *, unsigned char, unsigned int, unsigned int *);

int verbs_query_gid_type(void *context, unsigned char port, unsigned int index, unsigned int *type) {
    return ibv_query_gid_type(context, port, index, type);
}

/* Exports TARGET as NAME of the version NODE. LOCAL is a unique name for the assembler. */
#define EXPORT(local, name, node, target)                                                                              \
    extern __typeof__(target) local __attribute__((alias(#target)));                                                   \
    __asm__(".symver " #local ", " #name "@" node)

#define PRIVATE(name, target)                                                                                          \
    EXPORT(name##_in_34, name, "IBVERBS_PRIVATE_34", target);                                                          \
    EXPORT(name##_in_59, name, "IBVERBS_PRIVATE_59", target);                                                          \
    EXPORT(name##_in_64, name, "IBVERBS_PRIVATE_64", target)

#define FIRST(name, target) EXPORT(name##_in_1_0, name, "IBVERBS_1.0", target)

PRIVATE(__ioctl_final_num_attrs, verbs_refuse);
PRIVATE(__verbs_log, verbs_refuse);
PRIVATE(_verbs_init_and_alloc_context, verbs_refuse_pointer);
PRIVATE(execute_ioctl, verbs_refuse);
PRIVATE(ibv_cmd_advise_mr, verbs_refuse);
PRIVATE(ibv_cmd_alloc_dm, verbs_refuse);
PRIVATE(ibv_cmd_alloc_mw, verbs_refuse);
PRIVATE(ibv_cmd_alloc_pd, verbs_refuse);
PRIVATE(ibv_cmd_attach_mcast, verbs_refuse);
PRIVATE(ibv_cmd_close_xrcd, verbs_refuse);
PRIVATE(ibv_cmd_create_ah, verbs_refuse);
PRIVATE(ibv_cmd_create_counters, verbs_refuse);
PRIVATE(ibv_cmd_create_cq, verbs_refuse);
PRIVATE(ibv_cmd_create_cq_ex, verbs_refuse);
PRIVATE(ibv_cmd_create_flow, verbs_refuse);
PRIVATE(ibv_cmd_create_flow_action_esp, verbs_refuse);
PRIVATE(ibv_cmd_create_qp, verbs_refuse);
PRIVATE(ibv_cmd_create_qp_ex, verbs_refuse);
PRIVATE(ibv_cmd_create_qp_ex2, verbs_refuse);
PRIVATE(ibv_cmd_create_rwq_ind_table, verbs_refuse);
PRIVATE(ibv_cmd_create_srq, verbs_refuse);
PRIVATE(ibv_cmd_create_srq_ex, verbs_refuse);
PRIVATE(ibv_cmd_create_wq, verbs_refuse);
PRIVATE(ibv_cmd_dealloc_mw, verbs_refuse);
PRIVATE(ibv_cmd_dealloc_pd, verbs_refuse);
PRIVATE(ibv_cmd_dereg_mr, verbs_refuse);
PRIVATE(ibv_cmd_destroy_ah, verbs_refuse);
PRIVATE(ibv_cmd_destroy_counters, verbs_refuse);
PRIVATE(ibv_cmd_destroy_cq, verbs_refuse);
PRIVATE(ibv_cmd_destroy_flow, verbs_refuse);
PRIVATE(ibv_cmd_destroy_flow_action, verbs_refuse);
PRIVATE(ibv_cmd_destroy_qp, verbs_refuse);
PRIVATE(ibv_cmd_destroy_rwq_ind_table, verbs_refuse);
PRIVATE(ibv_cmd_destroy_srq, verbs_refuse);
PRIVATE(ibv_cmd_destroy_wq, verbs_refuse);
PRIVATE(ibv_cmd_detach_mcast, verbs_refuse);
PRIVATE(ibv_cmd_free_dm, verbs_refuse);
PRIVATE(ibv_cmd_get_context, verbs_refuse);
PRIVATE(ibv_cmd_modify_cq, verbs_refuse);
PRIVATE(ibv_cmd_modify_flow_action_esp, verbs_refuse);
PRIVATE(ibv_cmd_modify_qp, verbs_refuse);
PRIVATE(ibv_cmd_modify_qp_ex, verbs_refuse);
PRIVATE(ibv_cmd_modify_srq, verbs_refuse);
PRIVATE(ibv_cmd_modify_wq, verbs_refuse);
PRIVATE(ibv_cmd_open_qp, verbs_refuse);
PRIVATE(ibv_cmd_open_xrcd, verbs_refuse);
PRIVATE(ibv_cmd_poll_cq, verbs_refuse);
PRIVATE(ibv_cmd_post_recv, verbs_refuse);
PRIVATE(ibv_cmd_post_send, verbs_refuse);
PRIVATE(ibv_cmd_post_srq_recv, verbs_refuse);
PRIVATE(ibv_cmd_query_context, verbs_refuse);
PRIVATE(ibv_cmd_query_device_any, verbs_refuse);
PRIVATE(ibv_cmd_query_mr, verbs_refuse);
PRIVATE(ibv_cmd_query_port, verbs_refuse);
PRIVATE(ibv_cmd_query_qp, verbs_refuse);
PRIVATE(ibv_cmd_query_srq, verbs_refuse);
PRIVATE(ibv_cmd_read_counters, verbs_refuse);
PRIVATE(ibv_cmd_reg_dm_mr, verbs_refuse);
PRIVATE(ibv_cmd_reg_dmabuf_mr, verbs_refuse);
PRIVATE(ibv_cmd_reg_mr, verbs_refuse);
PRIVATE(ibv_cmd_req_notify_cq, verbs_refuse);
PRIVATE(ibv_cmd_rereg_mr, verbs_refuse);
PRIVATE(ibv_cmd_resize_cq, verbs_refuse);
PRIVATE(ibv_read_ibdev_sysfs_file, verbs_refuse);
PRIVATE(verbs_init_cq, verbs_refuse);
PRIVATE(verbs_open_device, verbs_refuse_pointer);
PRIVATE(verbs_set_ops, verbs_refuse);
PRIVATE(verbs_uninit_context, verbs_refuse);
PRIVATE(ibv_query_gid_type, verbs_query_gid_type);
PRIVATE(verbs_allow_disassociate_destroy, verbs_false);
EXPORT(verbs_register_driver_34_in_34, verbs_register_driver_34, "IBVERBS_PRIVATE_34", verbs_refuse);
EXPORT(verbs_register_driver_59_in_59, verbs_register_driver_59, "IBVERBS_PRIVATE_59", verbs_refuse);
EXPORT(verbs_register_driver_64_in_64, verbs_register_driver_64, "IBVERBS_PRIVATE_64", verbs_refuse);
EXPORT(ibv_register_driver_in_1_1, ibv_register_driver, "IBVERBS_1.1", verbs_refuse);

FIRST(ibv_get_device_list, verbs_no_devices);
FIRST(ibv_ack_async_event, verbs_refuse);
FIRST(ibv_ack_cq_events, verbs_refuse);
FIRST(ibv_alloc_pd, verbs_refuse_pointer);
FIRST(ibv_attach_mcast, verbs_refuse);
FIRST(ibv_close_device, verbs_refuse);
FIRST(ibv_create_ah, verbs_refuse_pointer);
FIRST(ibv_create_cq, verbs_refuse_pointer);
FIRST(ibv_create_qp, verbs_refuse_pointer);
FIRST(ibv_create_srq, verbs_refuse_pointer);
FIRST(ibv_dealloc_pd, verbs_refuse);
FIRST(ibv_dereg_mr, verbs_refuse);
FIRST(ibv_destroy_ah, verbs_refuse);
FIRST(ibv_destroy_cq, verbs_refuse);
FIRST(ibv_destroy_qp, verbs_refuse);
FIRST(ibv_destroy_srq, verbs_refuse);
FIRST(ibv_detach_mcast, verbs_refuse);
FIRST(ibv_free_device_list, verbs_refuse);
FIRST(ibv_get_async_event, verbs_refuse);
FIRST(ibv_get_cq_event, verbs_refuse);
FIRST(ibv_get_device_guid, verbs_refuse_pointer);
FIRST(ibv_get_device_name, verbs_refuse_pointer);
FIRST(ibv_modify_qp, verbs_refuse);
FIRST(ibv_modify_srq, verbs_refuse);
FIRST(ibv_open_device, verbs_refuse_pointer);
FIRST(ibv_query_device, verbs_refuse);
FIRST(ibv_query_gid, verbs_refuse);
FIRST(ibv_query_pkey, verbs_refuse);
FIRST(ibv_query_port, verbs_refuse);
FIRST(ibv_query_qp, verbs_refuse);
FIRST(ibv_query_srq, verbs_refuse);
FIRST(ibv_reg_mr, verbs_refuse_pointer);
FIRST(ibv_resize_cq, verbs_refuse);
