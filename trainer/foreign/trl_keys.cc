#include "trainer/foreign/trl_keys.h"

#include <array>

#include "trainer/foreign/conversions.h"

namespace keel::trainer::foreign {

namespace {

#define ACTOR "actor_rollout_ref.actor."
#define ROLLOUT "actor_rollout_ref.rollout."
#define MODEL "actor_rollout_ref.model."
#define REF "actor_rollout_ref.ref."

constexpr const char* kTrlHow = "how it is computed, not what: Keel chooses its kernels itself";
constexpr const char* kTrlOneLayout = "ranks are laid out by actor.megatron.* (docs/launch.md)";
constexpr const char* kTrlLaunch = "of what starts the processes: --world says how many there are";
constexpr const char* kTrlFiles = "rows are files (docs/data.md)";
constexpr const char* kTrlHub = "nothing is sent to a hub; keel ckpt export-hf makes the folder";
constexpr const char* kTrlLora = "beside adapters (use_peft) nothing else is trained";
constexpr const char* kTrlQuantized = "weights are float32 or bfloat16";
constexpr const char* kTrlOwnEngine = "Keel's own engine generates";
constexpr const char* kTrlAdam = "AdamW with fp32 masters and moments is the optimizer";
constexpr const char* kTrlValidation = "trainer.test_freq says when, and it takes all rows";
constexpr const char* kTrlExactWeights = "rollouts run on exactly the weights that are trained";
constexpr const char* kTrlRewards =
    "reward.custom_reward_function, or a rule, program or service by reward.type (docs/rewards.md)";

constexpr auto kTrlCommon = std::to_array<Row>({
    // model
    Renamed("model_name_or_path", "null", MODEL "path"),
    NotSupported("model_revision", "main|null", "a folder has one revision"),
    Renamed("bf16", "null", MODEL "dtype", Bf16AsDtype),
    NotSupported("{fp16,fp16_full_eval}", "False", "bf16"),
    NotSupported("dtype", "float32|bfloat16|auto|null", "masters are fp32"),
    NotNeeded("bf16_full_eval", "a validation computes as the training does"),
    NotSupported("model_init_kwargs.**", "null|{}", "change config.json of the model's folder"),
    NotSupported("router_aux_loss_coef", "null",
                 "router_aux_loss_coef of the model's config.json, with output_router_logits: true "
                 "there, or false for no such loss"),
    Renamed("use_peft", "False", MODEL "lora_rank", Worked),
    Renamed("lora_r", "16", MODEL "lora_rank", Worked),
    Renamed("lora_alpha", "32", MODEL "lora_alpha", Worked),
    Renamed("lora_target_modules", "null", MODEL "target_modules", Worked),
    Renamed("use_rslora", "False", MODEL "lora_rank_stabilized", Worked),
    Renamed("lora_dropout", "0.05", MODEL "lora_rank", Worked),
    NotSupported("use_dora", "False", "adapters are LoRA's"),
    NotSupported("{lora_target_parameters,lora_modules_to_save}", "null", kTrlLora),
    NotNeeded("lora_task_type", "models are causal language models"),
    NotSupported("{load_in_8bit,load_in_4bit}", "False", kTrlQuantized),
    NotNeeded("{bnb_4bit_quant_type,bnb_4bit_quant_storage,use_bnb_nested_quant}", kTrlQuantized),
    NotNeeded("{attn_implementation,trust_remote_code,use_liger_kernel,use_cache,tf32,"
              "torch_compile,torch_compile_backend,torch_compile_mode,torch_empty_cache_steps,"
              "ignore_bias_buffers,disable_dropout,padding_free,pad_to_multiple_of}",
              kTrlHow),
    NotNeeded("{liger_kernel_config,gradient_checkpointing_kwargs,activation_checkpointing_kwargs}"
              ".**",
              kTrlHow),
    Renamed("gradient_checkpointing", "True", MODEL "enable_gradient_checkpointing"),
    NotNeeded("activation_checkpointing", "gradient_checkpointing says it"),
    NotSupported("activation_offloading", "False", "gradient_checkpointing"),
    NotSupported("neftune_noise_alpha", "null", "nothing is added to embeddings"),
    NotSupported("label_smoothing_factor", "0.0", "the loss is that of the labels"),

    // data
    Renamed("dataset_name", "null", "data.train_files", AsList),
    NotSupported("{datasets,mixture}.**", "null", "data.sources: files with weights"),
    NotSupported("dataset_config", "null", kTrlFiles),
    NotSupported("dataset_train_split", "train", kTrlFiles),
    NotSupported("dataset_test_split", "test", "data.val_files"),
    NotSupported("dataset_kwargs.**", "null|{}", kTrlFiles),
    NotNeeded("{dataset_streaming,dataset_num_proc}", "rows are read once, by all ranks"),
    NotNeeded("dataloader_{num_workers,persistent_workers,pin_memory,prefetch_factor,"
              "multiprocessing_context,in_order}",
              "rows are in memory, or mapped"),
    NotNeeded("dataloader_drop_last", "a batch goes on into the next epoch"),
    NotNeeded("{remove_unused_columns,label_names,length_column_name}",
              "rows say by their keys what they are"),
    NotSupported("data_seed", "null", "trainer.seed orders the data"),
    NotSupported("ignore_data_skip", "False", "a resumed run goes on where it was"),

    // batches and steps
    Renamed("per_device_train_batch_size", "8", "data.micro_batch_size_per_gpu"),
    Renamed("gradient_accumulation_steps", "1", "data.train_batch_size", Worked),
    NotSupported("auto_find_batch_size", "False", "data.micro_batch_size_per_gpu"),
    Renamed("num_train_epochs", "3.0", "trainer.total_epochs"),
    Renamed("max_steps", "-1", "trainer.total_training_steps", UnlessNegative),
    Renamed("seed", "42", "trainer.seed"),
    NotNeeded("{full_determinism,average_tokens_across_devices}",
              "a run is always the same, and counts are of all ranks"),

    // optimizer
    Renamed("adam_beta1", "0.9", ACTOR "optim.betas", Worked),
    Renamed("adam_beta2", "0.999", ACTOR "optim.betas", Worked),
    Renamed("adam_epsilon", "1e-8", ACTOR "optim.eps"),
    Renamed("weight_decay", "0.0", ACTOR "optim.weight_decay"),
    Renamed("max_grad_norm", "1.0", ACTOR "optim.clip_grad", NothingAsZero),
    Renamed("lr_scheduler_type", "linear", ACTOR "optim.lr_decay_style", AsTransformersDecayStyle),
    Renamed("warmup_steps", "0", ACTOR "optim.lr_warmup_steps", Worked),
    NotSupported("warmup_ratio", "0|null", "warmup_steps"),
    Renamed("lr_scheduler_kwargs.{min_lr,min_lr_rate}", "null", ACTOR "optim.min_lr", Worked),
    Renamed("lr_scheduler_kwargs.min_lr_ratio", "null", ACTOR "optim.min_lr", Worked),
    Renamed("lr_scheduler_kwargs.num_decay_steps", "null", ACTOR "optim.lr_wsd_decay_steps",
            Worked),
    NotSupported("lr_scheduler_kwargs.decay_type", "linear", "wsd decays linearly"),
    NotSupported("lr_scheduler_kwargs.**", "null|{}",
                 "actor.optim.{lr_decay_style,min_lr,lr_wsd_decay_steps}"),
    NotSupported("optim", "adamw_torch|adamw_torch_fused|adamw_hf|adamw_apex_fused", kTrlAdam),
    NotSupported("{optim_args,optim_target_modules}", "null", kTrlAdam),

    // the run
    Renamed("output_dir", "trainer_output", "trainer.default_local_dir"),
    Renamed("save_steps", "500", "trainer.save_freq", Worked),
    Renamed("save_strategy", "steps", "trainer.save_freq", Worked),
    Renamed("save_total_limit", "null", "trainer.max_ckpts_to_keep", FromOneOn),
    NotSupported("{save_only_model,save_on_each_node}", "False",
                 "actor.checkpoint.save_contents; a checkpoint is one folder"),
    NotNeeded("{enable_jit_checkpoint,restore_callback_states_from_checkpoint}",
              "SIGTERM saves, and all state comes back"),
    Renamed("eval_strategy", "no", "trainer.test_freq", Worked),
    Renamed("eval_steps", "null", "trainer.test_freq", Worked),
    Renamed("eval_on_start", "False", "trainer.val_before_train"),
    NotNeeded("{per_device_eval_batch_size,eval_accumulation_steps,eval_delay,batch_eval_metrics,"
              "eval_do_concat_batches,eval_use_gather_object,prediction_loss_only,"
              "include_for_metrics}",
              kTrlValidation),
    NotSupported("load_best_model_at_end", "False", "trainer.keep_best_ckpts"),
    NotNeeded("{metric_for_best_model,greater_is_better}", "of load_best_model_at_end"),
    Renamed("resume_from_checkpoint", "null", "trainer.resume_from_path", PathOrNothing),
    Renamed("logging_steps", "10", "trainer.log_freq", FromOneOn),
    Renamed("report_to", "none", "trainer.logger", AsLoggers),
    NotNeeded("{logging_strategy,logging_first_step,logging_nan_inf_filter,"
              "include_num_input_tokens_seen,disable_tqdm,log_level,log_level_replica,"
              "log_on_each_node,skip_memory_metrics}",
              "each step has a line in metrics.jsonl"),
    NotNeeded("{run_name,project,trackio_space_id,trackio_static_space_id,trackio_bucket_id}",
              "a run is its folder, trainer.default_local_dir"),
    NotSupported("push_to_hub", "False", kTrlHub),
    NotNeeded("hub_{model_id,strategy,token,private_repo,always_push,revision}", kTrlHub),
    Renamed("use_cpu", "False", "trainer.device", CpuAsDevice),
    NotSupported("{deepspeed,accelerator_config,parallelism_config}.**", "null", kTrlOneLayout),
    NotSupported("fsdp", "null|False|[]", kTrlOneLayout),
    NotNeeded("fsdp_config.**", kTrlOneLayout),
    NotNeeded("{local_rank,ddp_backend,ddp_timeout,ddp_find_unused_parameters,ddp_bucket_cap_mb,"
              "ddp_broadcast_buffers,ddp_static_graph}",
              kTrlOneLayout),
    NotNeeded("{do_train,do_eval,do_predict,debug,config,log_multimodal}", "of the script"),
    NotNeeded("env.**", "variables of the environment are the shell's"),
    // What trl passes on to accelerate.
    NotNeeded("{accelerate_config,config_file,num_processes,num_machines,machine_rank,"
              "main_process_ip,main_process_port}",
              kTrlLaunch),
    // Of earlier versions.
    NotNeeded("{use_liger,use_liger_loss,use_mps_device,half_precision_backend}", kTrlHow),
    NotNeeded("overwrite_output_dir", "what a folder holds is gone on with: trainer.resume_mode"),
    NotSupported("group_by_length", "False", "data.packing fills samples"),
});

constexpr auto kTrlSft = std::to_array<Row>({
    Renamed("learning_rate", "2e-5", ACTOR "optim.lr"),
    Renamed("max_length", "1024", "data.max_length"),
    Renamed("truncation_mode", "keep_start", "data.truncation", AsTruncation),
    Renamed("packing", "False", "data.packing", Worked),
    Renamed("packing_strategy", "bfd", "data.packing", Worked),
    NotSupported("eval_packing", "null", "data.packing is of both"),
    Renamed("dataset_text_field", "text", "data.text_key"),
    Renamed("chat_template_path", "null", "data.chat_template"),
    NotSupported("{eos_token,pad_token}", "null", "those of the model's tokenizer"),
    NotSupported("completion_only_loss", "null|True", "trainer.task: pretrain learns all tokens"),
    NotSupported("assistant_only_loss", "True", "answers alone are learnt"),
    NotSupported("loss_type", "nll|chunked_nll", "the loss is the negative log-likelihood"),
    Renamed("train_sampling_strategy", "random", "data.shuffle", RandomAsShuffle),
    NotNeeded("shuffle_dataset", "data.shuffle makes a new order every epoch"),
});

constexpr auto kTrlDpo = std::to_array<Row>({
    Renamed("learning_rate", "1e-6", ACTOR "optim.lr"),
    Renamed("beta", "0.1", "dpo.beta"),
    Renamed("loss_type", "[sigmoid]", "dpo.loss_type", OneOfList),
    Renamed("label_smoothing", "0.0", "dpo.label_smoothing"),
    Renamed("discopop_tau", "0.05", "dpo.discopop_tau"),
    Renamed("max_length", "1024", "data.max_prompt_length", Worked),
    Renamed("max_prompt_length", "", "data.max_prompt_length", Worked),
    NotSupported("max_completion_length", "null",  // of earlier versions
                 "data.max_response_length, which is max_length here"),
    Renamed("truncation_mode", "keep_start", "data.truncation", AsTruncation),
    Renamed("loss_weights", "null", "dpo.loss_weights", NumbersOrNothing),
    Renamed("f_divergence_type", "reverse_kl", "dpo.f_divergence_type"),
    Renamed("f_alpha_divergence_coef", "0.5", "dpo.f_alpha_divergence_coef"),
    Renamed("ld_alpha", "null", "dpo.ld_alpha"),
    Renamed("use_weighting", "False", "dpo.use_weighting"),
    NotNeeded("precompute_ref_{log_probs,batch_size}",
              "the reference's log-probabilities are computed beside the step"),
    Renamed("sync_ref_model", "False", REF "sync_ref_model"),
    Renamed("ref_model_mixup_alpha", "0.6", REF "ref_model_mixup_alpha"),
    Renamed("ref_model_sync_steps", "512", REF "ref_model_sync_steps"),
    Renamed("train_sampling_strategy", "random", "data.shuffle", RandomAsShuffle),
    NotSupported("pad_token", "null", "that of the model's tokenizer"),
});

constexpr auto kTrlGrpo = std::to_array<Row>({
    Renamed("learning_rate", "1e-6", ACTOR "optim.lr"),
    Renamed("num_generations", "8", ROLLOUT "n"),
    Renamed("num_generations_eval", "null", ROLLOUT "val_kwargs.n", Worked),
    Renamed("max_prompt_length", "", "data.max_prompt_length"),
    Renamed("max_completion_length", "512", "data.max_response_length"),
    Renamed("generation_batch_size", "null", "data.train_batch_size", Worked),
    Renamed("steps_per_generation", "null", "data.train_batch_size", Worked),
    Renamed("num_iterations", "1", ACTOR "ppo_epochs"),
    Renamed("temperature", "1.0", ROLLOUT "temperature"),
    Renamed("top_p", "1.0", ROLLOUT "top_p"),
    Renamed("top_k", "0", ROLLOUT "top_k", ZeroAsAll),
    Renamed("min_p", "null", ROLLOUT "min_p"),
    Renamed("repetition_penalty", "1.0", ROLLOUT "repetition_penalty"),
    NotSupported("generation_kwargs.**", "null|{}", "the keys of actor_rollout_ref.rollout"),
    Renamed("chat_template_kwargs", "null", "data.apply_chat_template_kwargs", MapOrNothing),
    NotSupported("max_tool_calling_iterations", "null", "rollout.multi_turn (docs/tools.md)"),
    Renamed("beta", "0.0", ACTOR "kl_loss_coef"),
    Renamed("use_bias_correction_kl", "True", ACTOR "use_bias_correction_kl", Worked),
    Renamed("epsilon", "0.2", ACTOR "clip_ratio"),
    Renamed("epsilon_high", "null", ACTOR "clip_ratio_high", Worked),
    Renamed("delta", "null", ACTOR "clip_ratio_c", Worked),
    Renamed("loss_type", "dapo", ACTOR "loss_agg_mode", Worked),
    Renamed("importance_sampling_level", "token", ACTOR "policy_loss.loss_mode", Worked),
    Renamed("sapo_temperature_neg", "1.05", ACTOR "tau_neg"),
    Renamed("sapo_temperature_pos", "1.0", ACTOR "tau_pos"),
    Renamed("vespo_k_pos", "2.0", ACTOR "policy_loss.vespo_k_pos"),
    Renamed("vespo_lambda_pos", "3.0", ACTOR "policy_loss.vespo_lambda_pos"),
    Renamed("vespo_k_neg", "3.0", ACTOR "policy_loss.vespo_k_neg"),
    Renamed("vespo_lambda_neg", "2.0", ACTOR "policy_loss.vespo_lambda_neg"),
    Renamed("scale_rewards", "group", "algorithm.norm_adv_by_std_in_grpo", GroupAsTrue),
    Renamed("mask_truncated_completions", "False", "algorithm.overlong_filtering"),
    Renamed("entropy_coef", "0.0", ACTOR "entropy_coeff"),
    Renamed("use_adaptive_entropy", "False", ACTOR "use_adaptive_entropy"),
    Renamed("entropy_coef_min", "0.0", ACTOR "entropy_coeff_min", Worked),
    Renamed("entropy_coef_max", "1.0", ACTOR "entropy_coeff_max", Worked),
    Renamed("entropy_coef_delta", "0.005", ACTOR "entropy_coeff_delta", Worked),
    Renamed("entropy_target", "0.2", ACTOR "entropy_target", Worked),
    Renamed("top_entropy_quantile", "1.0", ACTOR "policy_loss.top_entropy_quantile"),
    Renamed("off_policy_mask_threshold", "null", ACTOR "policy_loss.off_policy_mask_threshold"),
    NotSupported("reward_funcs", "null", kTrlRewards),
    NotSupported("reward_weights", "null", kTrlRewards),
    NotSupported("reward_model_name_or_path", "null", kTrlRewards),
    NotSupported("multi_objective_aggregation", "sum_then_normalize", kTrlRewards),
    Renamed("sync_ref_model", "False", REF "sync_ref_model"),
    Renamed("ref_model_mixup_alpha", "0.6", REF "ref_model_mixup_alpha"),
    Renamed("ref_model_sync_steps", "512", REF "ref_model_sync_steps", Worked),
    Renamed("vllm_tensor_parallel_size", "1", ROLLOUT "tensor_model_parallel_size"),
    NotNeeded("{use_vllm,vllm_*,cache_implementation,use_transformers_paged,"
              "use_transformers_continuous_batching}",
              kTrlOwnEngine),
    NotNeeded("transformers_continuous_batching_config.**", kTrlOwnEngine),
    NotNeeded("vllm_importance_sampling_*", kTrlExactWeights),
    NotNeeded("{log_completions,num_completions_to_print,log_unique_prompts,"
              "log_completions_hub_repo}",
              "trainer.rollout_data_dir writes prompts, responses and scores"),
    NotNeeded("{cast_lm_head_to_fp32,ds3_gather_for_generation}", kTrlHow),
    Renamed("shuffle_dataset", "True", "data.shuffle"),
    NotNeeded("train_sampling_strategy", "shuffle_dataset says it"),
});

#undef ACTOR
#undef REF
#undef ROLLOUT
#undef MODEL

}  // namespace

std::vector<Row> TrlRows(TrlMethod method) {
  std::vector<Row> rows(kTrlCommon.begin(), kTrlCommon.end());
  switch (method) {
    case TrlMethod::kSft:
      rows.insert(rows.end(), kTrlSft.begin(), kTrlSft.end());
      break;
    case TrlMethod::kDpo:
      rows.insert(rows.end(), kTrlDpo.begin(), kTrlDpo.end());
      break;
    case TrlMethod::kGrpo:
      rows.insert(rows.end(), kTrlGrpo.begin(), kTrlGrpo.end());
      break;
  }
  return rows;
}

}  // namespace keel::trainer::foreign
