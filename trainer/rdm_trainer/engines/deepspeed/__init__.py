# SPDX-License-Identifier: GPL-3.0-or-later
"""DeepSpeed's engines. Only this package reads or overrides private parts of DeepSpeed.

The names are those of DeepSpeed 0.19.8. Subclasses override those with an asterisk:

=========================  ================================================================================
``engine``                 ``ds_tensor``, ``ds_shape``, ``ds_numel``, ``ds_zero_partition_rank`` and
                           ``ds_pipe_replicated`` of parameters; the module of ``Muon``
``subclasses``             ``PipelineEngine._INSTRUCTION_MAP``*, ``._exec_backward_pass``*,
                           ``.pipe_buffers``, ``.grad_layer``;
                           ``DeepSpeedEngine.buffered_allreduce_fallback``*;
                           ``DeepSpeedZeroOptimizer.reset_cpu_buffers``*, ``.averaged_gradients``
``distributed_optimizer``  ``BF16_Optimizer._update_hp_grad``*, ``.step``*, ``.clear_hp_grads``*,
                           ``.fp32_groups_*``, ``.bf16_groups``, ``._global_grad_norm``; ``_hp_grad`` of
                           parameters
``pipeline``               ``PipelineModule._partition_layers``*, ``._set_bounds``, ``._local_start``,
                           ``._local_stop``, ``._num_layers``
``states``                 ``fp32_partitioned_groups_flat`` and its like, and
                           ``_get_fp32_opt_state_partition``, in ZeRO 3; ``_hp_mapping`` of parameters; loss
                           scalers' attributes
``topology``               ``CPU_Accelerator.create_op_builder``*
=========================  ================================================================================
"""
