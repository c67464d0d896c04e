"""The names of the compiled module that Transformer Engine's Python layer uses, by release.

A test reads them from the installed wheel, so that a name that a later release adds is seen.
"""

from __future__ import annotations

NAMES = {
    (2, 20): frozenset(
        """
        CommOverlap CommOverlapHelper CommOverlapP2P CommOverlapType DType FP8BwdTensors
        FP8FwdTensors FP8TensorMeta LayerNorm NVTEQBHistogramMode NVTERoutingMapFormat
        NVTEScalingMode NVTE_Bias_Type NVTE_Fused_Attn_Backend NVTE_Mask_Type NVTE_QKV_Format
        NVTE_QKV_Layout NVTE_Softmax_Type bgrad_group_quantize bgrad_quantize
        bulk_overlap_ag_with_external_gemm clamped_dswiglu clamped_swiglu compute_amax
        convert_bshd_to_thd convert_thd_to_bshd copy_data_ptrs_to_device copy_to_kv_cache
        create_empty_quantized_tensor cusolvermp_ctx_create cusolvermp_ctx_destroy dbias_dgelu
        dbias_dqgelu dbias_drelu dbias_dsilu dbias_dsrelu dequantize device_supports_multicast
        dgeglu dgelu dglu dqgeglu dqgelu dreglu drelu dropout_bwd dropout_fwd dsilu dsituglu
        dsreglu dsrelu dswiglu ep_combine ep_combine_bwd ep_dispatch ep_dispatch_bwd ep_finalize
        ep_get_zero_copy ep_handle_mem_size ep_initialize ep_prepare ep_prepare_and_dispatch
        ep_zero_copy_supported fa_prepare_bwd fa_prepare_fwd
        fp8_block_scaling_compute_partial_amax fp8_block_scaling_partial_cast fp8_transpose
        fused_amax_and_scale_update_after_reduction fused_attn_bwd fused_attn_fwd
        fused_moe_aux_loss_bwd fused_moe_aux_loss_fwd fused_moe_aux_loss_fwd_graph_safe
        fused_multi_row_padding fused_multi_row_unpadding fused_qkv_rope_backward
        fused_qkv_rope_forward fused_rope_backward fused_rope_forward
        fused_score_for_moe_aux_loss_bwd fused_score_for_moe_aux_loss_fwd
        fused_topk_with_score_function_bwd fused_topk_with_score_function_fwd
        fused_topk_with_score_function_qb_fwd geglu gelu generic_gemm get_cublasLt_version
        get_cudnn_version get_fused_attn_backend get_grouped_gemm_setup_workspace_size
        get_num_cublas_streams get_stream_priority_range glu group_quantize
        group_requantize_inplace grouped_mlp_experimental grouped_swizzle_for_gemm layernorm_bwd
        layernorm_fwd moe_permute_bwd moe_permute_fwd moe_unpermute_bwd moe_unpermute_fwd
        multi_tensor_adam multi_tensor_adam_capturable multi_tensor_adam_capturable_master
        multi_tensor_adam_fp8 multi_tensor_adam_param_remainder
        multi_tensor_compute_scale_and_scale_inv multi_tensor_compute_scale_inv_e8m0
        multi_tensor_l2norm multi_tensor_scale multi_tensor_scale_tensor multi_tensor_sgd
        multi_tensor_swizzle_scales_for_gemm_unchecked_ multi_tensor_transpose_to_bhsd
        multi_tensor_unscale_l2norm mxfp8_scaling_compute_partial_amax
        mxfp8_scaling_partial_cast newton_schulz nvfp4_2d_multi_tensor_transpose
        nvfp4_2d_scale_transpose nvfp4_compute_global_scale nvfp4_data_transpose
        nvfp4_group_quantize_with_amax nvfp4_multi_tensor_2d_partial_cast
        nvfp4_multi_tensor_compute_partial_amax nvfp4_multi_tensor_fused_scale
        nvfp4_quantize_with_amax qgeglu qgelu quantize reglu relu rmsnorm_bwd rmsnorm_bwd_add
        rmsnorm_fwd scaled_aligned_causal_masked_softmax_backward
        scaled_aligned_causal_masked_softmax_forward scaled_clamped_dswiglu
        scaled_clamped_swiglu scaled_dsituglu scaled_dsrelu scaled_dswiglu
        scaled_masked_softmax_backward scaled_masked_softmax_forward scaled_situglu
        scaled_softmax_backward scaled_softmax_forward scaled_srelu scaled_swiglu
        scaled_upper_triang_masked_softmax_backward scaled_upper_triang_masked_softmax_forward
        silu situglu split_quantize splits_to_offsets splits_to_offsets_multi sreglu srelu
        swap_first_dims swiglu swizzle_scales_for_gemm_ te_general_grouped_gemm
        te_general_grouped_gemm_for_discrete_in te_general_grouped_gemm_for_discrete_out
        te_general_grouped_gemm_for_grouped_tensor
        thd_copy_valid_tokens_from_per_split_to_rank_local thd_cp_rank_order_to_sequence_order
        thd_get_partitioned_indices thd_grad_correction thd_out_correction thd_read_half_tensor
        thd_read_second_half_lse thd_second_half_lse_correction
        thd_sequence_order_to_cp_rank_order ubuf_built_with_mpi
        """.split()
    )
}
"""Release (major, minor) to the names; a release that is not here is refused."""
