#include "trainer/foreign/verl_keys.h"

#include <array>

#include "trainer/foreign/conversions.h"

namespace keel::trainer::foreign {

namespace {

#define ACTOR "actor_rollout_ref.actor."
#define REF "actor_rollout_ref.ref."
#define ROLLOUT "actor_rollout_ref.rollout."
#define MODEL "actor_rollout_ref.model."
#define LEARNERS "{actor_rollout_ref.actor,critic}."
#define ROLES "{actor_rollout_ref.actor,actor_rollout_ref.ref,critic}."
#define MODELS "{actor_rollout_ref,critic}.model."

// Reasons that many rows have.
constexpr const char* kVerlHow = "how it is computed, not what: Keel chooses its kernels itself";
constexpr const char* kVerlMemoryAlone =
    "it changes memory and speed, and no gradient: actor_rollout_ref.actor."
    "ppo_micro_batch_size_per_gpu says how many sequences go at a time";
constexpr const char* kVerlText = "models of text alone";
constexpr const char* kVerlNoRay =
    "there is no Ray: keel launch, torchrun, srun or mpirun start ranks";
constexpr const char* kVerlLora = "all weights are trained";
constexpr const char* kVerlProfiler =
    "trainer.profile.steps and trainer.profile.ranks name what libtorch's profiler looks into";
constexpr const char* kVerlActorsLayout = "reference and critic are laid out as the actor";
constexpr const char* kVerlSequence =
    "actor.megatron.tensor_model_parallel_size with sequence_parallel";
constexpr const char* kVerlOwnEngine =
    "Keel's own engine generates; the switch is of vLLM or SGLang";
constexpr const char* kVerlOneCheckpoint = "actor, critic and their state are one checkpoint";
constexpr const char* kVerlAdam = "AdamW with fp32 masters and moments is the optimizer";
constexpr const char* kVerlEngine =
    "of FSDP, VeOmni or torchtitan; Keel's layout is actor.megatron's";
constexpr const char* kVerlNoRewardModel =
    "rewards are rules, programs or services (docs/rewards.md)";
constexpr const char* kVerlQuantized = "weights are float32 or bfloat16, in generation too";
constexpr const char* kVerlSplit =
    "async_training.placement: split has ranks of their own that generate (docs/async.md)";
constexpr const char* kVerlDistill = "there is no distillation";

constexpr auto kVerlRows = std::to_array<Row>({
    NotNeeded("**._target_", "names a class of Python"),
    NotNeeded("{defaults,hydra,model_engine}.**", "of Hydra: the file is taken with its values"),

    // data
    Taken("data.train_files", "~/data/rlhf/gsm8k/train.parquet", AsList),
    Taken("data.val_files", "~/data/rlhf/gsm8k/test.parquet", AsList),
    Taken("data.train_batch_size", "1024"),
    Taken("data.max_prompt_length", "512"),
    Taken("data.max_response_length", "512"),
    Taken("data.filter_overlong_prompts", "False"),
    Taken("data.truncation", "error"),
    Taken("data.prompt_key", "prompt"),
    Taken("data.reward_fn_key", "data_source"),
    Taken("data.shuffle", "True"),
    Taken("data.apply_chat_template_kwargs", "{}"),
    Renamed("data.seed", "null", "trainer.seed"),
    Renamed("data.tokenizer", "null", MODEL "tokenizer_path"),
    Renamed("data.tool_config_path",
            "${oc.select:actor_rollout_ref.rollout.multi_turn.tool_config_path, null}",
            ROLLOUT "multi_turn.tool_config_path"),
    NotSupported("data.function_tool_path",
                 "null|${oc.select:actor_rollout_ref.rollout.multi_turn.function_tool_path, null}",
                 "tools are programs or services: rollout.multi_turn.tool_config_path"),
    NotSupported("data.{train,val}_max_samples", "-1", "name a shorter file"),
    NotSupported("data.gen_batch_size", "null",
                 "algorithm.filter_groups draws further batches of data.train_batch_size"),
    NotSupported("data.custom_cls.path", "null", "rows are as docs/data.md says"),
    NotNeeded("data.custom_cls.name", "of data.custom_cls.path"),
    NotSupported("data.sampler.class_path", "null", "data.shuffle and data.sources order rows"),
    NotNeeded("data.sampler.class_name", "of data.sampler.class_path"),
    NotNeeded("data.{dataloader_num_workers,filter_overlong_prompts_workers,use_shm}",
              "rows are read once, at the start"),
    NotNeeded("data.val_batch_size", "a validation takes all rows"),
    NotNeeded("data.validation_shuffle", "the order of a validation changes nothing"),
    NotNeeded("data.return_{raw_chat,raw_input_ids,full_prompt}",
              "prompts are kept as text and as ids"),
    NotNeeded("data.{return_multi_modal_inputs,image_key,image_patch_size,video_key,audio_key}",
              kVerlText),
    NotNeeded("data.mm_processor_kwargs.**", kVerlText),
    NotNeeded("**.trust_remote_code", "no code of a model is run"),

    // the model
    Taken(MODEL "path", "~/models/deepseek-llm-7b-chat"),
    Taken(MODEL "tokenizer_path", "null"),
    Taken(MODEL "enable_gradient_checkpointing", "True"),
    Renamed(MODEL "custom_chat_template", "null", "data.chat_template"),
    NotSupported(MODEL "hf_config_path", "null", "config.json of the model's own folder is read"),
    NotSupported(MODELS "override_config.**", "{}", "change config.json of the model's folder"),
    NotSupported(MODELS "external_lib", "null", "no code of a model is run"),
    NotSupported(MODELS "enable_activation_offload", "False",
                 "model.enable_gradient_checkpointing saves memory for activations"),
    NotSupported(MODELS "{lora_rank,lora.rank}", "0", kVerlLora),
    NotSupported(MODELS "{lora_adapter_path,lora.adapter_path}", "null", kVerlLora),
    NotNeeded(MODELS "{lora_alpha,target_modules,exclude_modules}", kVerlLora),
    NotNeeded(MODELS "lora.**", kVerlLora),
    NotSupported(MODELS "mtp.{enable,enable_train,enable_rollout}", "False",
                 "no heads that predict several tokens"),
    NotNeeded(MODELS "mtp.**", "of mtp.enable"),
    NotNeeded(MODELS "{use_remove_padding,use_fused_kernels,use_liger,use_shm}", kVerlHow),
    NotNeeded(MODELS "{fused_kernel_options,tiled_mlp}.**", kVerlHow),
    NotNeeded("critic.model.{tokenizer_path,custom_chat_template,hf_config_path}",
              "the actor's tokenizer and template are the critic's"),
    NotNeeded("critic.model.enable_gradient_checkpointing", "the actor's switch is the critic's"),

    // the policy
    Taken(ACTOR "ppo_mini_batch_size", "256"),
    Taken(ACTOR "ppo_micro_batch_size_per_gpu", "null"),
    Taken(ACTOR "ppo_epochs", "1"),
    Taken(ACTOR "shuffle", "False"),
    Taken(ACTOR "clip_ratio", "0.2"),
    Taken(ACTOR "clip_ratio_low", "0.2"),
    Taken(ACTOR "clip_ratio_high", "0.2"),
    Taken(ACTOR "clip_ratio_c", "3.0"),
    Taken(ACTOR "loss_agg_mode", "token-mean"),
    Taken(ACTOR "loss_scale_factor", "null"),
    Taken(ACTOR "entropy_coeff", "0"),
    Taken(ACTOR "use_kl_loss", "False"),
    Taken(ACTOR "kl_loss_coef", "0.001"),
    Taken(ACTOR "kl_loss_type", "low_var_kl"),
    Taken(ACTOR "policy_loss.loss_mode", "vanilla"),
    Taken(ACTOR "policy_loss.clip_cov_ratio", "0.0002"),
    Taken(ACTOR "policy_loss.clip_cov_lb", "1.0"),
    Taken(ACTOR "policy_loss.clip_cov_ub", "5.0"),
    Taken(ACTOR "policy_loss.kl_cov_ratio", "0.0002"),
    Taken(ACTOR "policy_loss.ppo_kl_coef", "0.1"),
    Taken(ACTOR "policy_loss.dro_beta", "null"),
    Taken(ACTOR "tau_pos", "1.0"),
    Taken(ACTOR "tau_neg", "1.05"),
    Renamed(ACTOR "grad_clip", "1.0", ACTOR "optim.clip_grad"),
    NotSupported(LEARNERS "ppo_micro_batch_size", "null", "ppo_micro_batch_size_per_gpu"),
    NotSupported(LEARNERS "use_dynamic_bsz",
                 "False|${oc.select:actor_rollout_ref.actor.use_dynamic_bsz,false}",
                 kVerlMemoryAlone),
    NotNeeded(LEARNERS "ppo_max_token_len_per_gpu", kVerlMemoryAlone, "16384"),
    NotNeeded(LEARNERS "ppo_infer_*", kVerlMemoryAlone),
    NotNeeded(LEARNERS "data_loader_seed", "trainer.seed orders all data"),
    NotNeeded(ROLES "{strategy,rollout_n}", "there is one engine, and rollout.n is everyone's"),
    NotNeeded(ROLES "{entropy_from_logits_with_chunking,entropy_from_logits_chunk_size,"
                    "entropy_checkpointing,use_torch_compile,use_fused_kernels,use_remove_padding,"
                    "use_prefix_grouper,pad_to_length}",
              kVerlHow),
    NotNeeded(ACTOR "{calculate_entropy,calculate_sum_pi_squared}",
              "what the metrics or an estimator need is computed"),
    NotNeeded(ACTOR "freeze_vision_tower", kVerlText),
    NotSupported(ROLES "ulysses_sequence_parallel_size",
                 "1|${oc.select:actor_rollout_ref.actor.ulysses_sequence_parallel_size,1}",
                 kVerlSequence),
    NotSupported("**.router_replay.mode", "disabled", "experts are routed anew in training"),
    NotNeeded(ROLES "{megatron,veomni}.router_replay.**", "of router_replay.mode"),

    // optimizers
    Taken(ACTOR "optim.lr", "1e-6"),
    Taken("critic.optim.lr", "1e-5"),
    Taken(LEARNERS "optim.betas", "[0.9, 0.999]"),
    Taken(LEARNERS "optim.weight_decay", "0.01"),
    Taken(LEARNERS "optim.clip_grad", "1.0"),
    Taken(LEARNERS "optim.eps", "1e-8"),
    Taken(LEARNERS "optim.lr_warmup_steps", "-1"),
    Taken(LEARNERS "optim.lr_decay_style", "constant", AsDecayStyle),
    Taken(LEARNERS "optim.min_lr", "0.0"),
    Taken(LEARNERS "optim.lr_decay_steps", "null"),
    Taken(LEARNERS "optim.lr_wsd_decay_steps", "null"),
    Renamed(ACTOR "optim.lr_scheduler_type", "constant", ACTOR "optim.lr_decay_style",
            AsDecayStyle),
    Renamed("critic.optim.lr_scheduler_type", "constant", "critic.optim.lr_decay_style",
            AsDecayStyle),
    Renamed(ACTOR "optim.lr_min", "0.0", ACTOR "optim.min_lr"),
    Renamed("critic.optim.lr_min", "0.0", "critic.optim.min_lr"),
    Renamed("critic.grad_clip", "1.0", "critic.optim.clip_grad"),
    NotSupported(LEARNERS "optim.lr_warmup_steps_ratio", "0.0|null", "optim.lr_warmup_steps"),
    NotSupported(LEARNERS "optim.{min_lr_ratio,min_lr_factor}", "0.0|null", "optim.min_lr"),
    NotSupported(LEARNERS "optim.{lr_warmup_init,lr_start}", "0.0", "a warm-up begins at 0"),
    NotSupported(LEARNERS "optim.lr_wsd_decay_style", "exponential|linear", "wsd decays linearly"),
    NotSupported(LEARNERS "optim.lr_decay_ratio", "1.0", "optim.lr_decay_steps"),
    NotSupported(LEARNERS "optim.decay_type", "linear", "optim.lr_decay_style"),
    NotSupported(LEARNERS "optim.warmup_style", "null", "optim.lr_decay_style"),
    NotSupported(LEARNERS "optim.num_cycles", "0.5", "cosine falls once"),
    NotSupported(LEARNERS "optim.{optimizer,name}", "adam|AdamW|adamw", kVerlAdam),
    NotSupported(LEARNERS "optim.override_optimizer_config.**", "{}|null", kVerlAdam),
    NotSupported(LEARNERS "optim.{exp_avg_dtype,exp_avg_sq_dtype,main_grads_dtype}", "fp32",
                 kVerlAdam),
    NotSupported(LEARNERS "optim.{use_precision_aware_optimizer,use_layer_wise_distributed_"
                          "optimizer}",
                 "False", kVerlAdam),
    NotSupported(LEARNERS "optim.weight_decay_incr_style", "constant",
                 "optim.weight_decay stays as it is"),
    NotNeeded(LEARNERS "optim.muon_*", "of Muon; AdamW is the optimizer"),
    NotNeeded(LEARNERS "optim.{optimizer_impl,zero_indexed_step,use_checkpoint_opt_param_"
                       "scheduler,total_training_steps}",
              "the schedule goes on from a checkpoint, over trainer.total_training_steps"),
    NotNeeded(REF "optim.**", "the reference does not learn"),

    // layouts and offload
    Taken(ACTOR "megatron.tensor_model_parallel_size", "1"),
    Taken(ACTOR "megatron.pipeline_model_parallel_size", "1"),
    Taken(ACTOR "megatron.sequence_parallel", "True"),
    Taken(ACTOR "megatron.use_distributed_optimizer", "True"),
    Taken("{actor_rollout_ref.actor,actor_rollout_ref.ref,critic}.megatron.param_offload",
          "${oc.select:actor_rollout_ref.actor.megatron.param_offload,False}"),
    Taken(LEARNERS "megatron.grad_offload", "False"),
    Taken(LEARNERS "megatron.optimizer_offload", "False"),
    Renamed(ACTOR "{megatron,fsdp_config,torchtitan}.dtype", "bfloat16", MODEL "dtype", AsDtype),
    Renamed(ACTOR "{fsdp_config,torchtitan,veomni}.param_offload", "False",
            ACTOR "megatron.param_offload"),
    Renamed(ACTOR "{fsdp_config,torchtitan,veomni}.optimizer_offload", "False",
            ACTOR "megatron.optimizer_offload"),
    Renamed(ACTOR "torchtitan.tensor_parallel_size", "1",
            ACTOR "megatron.tensor_model_parallel_size"),
    Renamed(ACTOR "torchtitan.pipeline_parallel_size", "1",
            ACTOR "megatron.pipeline_model_parallel_size"),
    Renamed(REF "{fsdp_config,torchtitan,veomni}.param_offload", "False",
            REF "megatron.param_offload"),
    Renamed("critic.{fsdp,model.fsdp_config,torchtitan,veomni}.param_offload", "False",
            "critic.megatron.param_offload"),
    Renamed("critic.{fsdp,model.fsdp_config,torchtitan,veomni}.optimizer_offload", "False",
            "critic.megatron.optimizer_offload"),
    NotSupported("{actor_rollout_ref.ref,critic}.megatron.tensor_model_parallel_size",
                 "=actor_rollout_ref.actor.megatron.tensor_model_parallel_size", kVerlActorsLayout),
    NotSupported("{actor_rollout_ref.ref,critic}.megatron.pipeline_model_parallel_size",
                 "=actor_rollout_ref.actor.megatron.pipeline_model_parallel_size",
                 kVerlActorsLayout),
    NotSupported("{actor_rollout_ref.ref,critic}.torchtitan.tensor_parallel_size",
                 "=actor_rollout_ref.actor.torchtitan.tensor_parallel_size", kVerlActorsLayout),
    NotSupported("{actor_rollout_ref.ref,critic}.torchtitan.pipeline_parallel_size",
                 "=actor_rollout_ref.actor.torchtitan.pipeline_parallel_size", kVerlActorsLayout),
    NotNeeded("{actor_rollout_ref.ref,critic}.megatron.{sequence_parallel,use_distributed_"
              "optimizer,dtype}",
              kVerlActorsLayout),
    NotNeeded(REF "megatron.{grad,optimizer}_offload", "the reference does not learn"),
    NotSupported(ROLES "{megatron,torchtitan}.context_parallel_size", "1", kVerlSequence),
    NotSupported(ROLES "{fsdp_config,fsdp}.ulysses_sequence_parallel_size", "1", kVerlSequence),
    NotSupported(ROLES "veomni.ulysses_parallel_size", "1", kVerlSequence),
    NotSupported(ROLES "megatron.dynamic_context_parallel", "False", kVerlSequence),
    NotNeeded(ROLES "megatron.max_seqlen_per_dp_cp_rank", "of dynamic_context_parallel"),
    NotSupported(ROLES "{megatron.expert_model,torchtitan.expert,veomni.expert}_parallel_size", "1",
                 "experts are split by tensor parallelism"),
    NotSupported(ROLES "megatron.expert_tensor_parallel_size", "null|1",
                 "experts are split by tensor parallelism"),
    NotSupported(ROLES "megatron.virtual_pipeline_model_parallel_size", "null",
                 "the pipeline is plain 1F1B"),
    NotSupported(ROLES "megatron.use_megatron_fsdp", "False",
                 "optimizer state alone is divided (ZeRO-1)"),
    NotSupported(ROLES "megatron.{use_dist_checkpointing,dist_ckpt_optim_fully_reshardable,"
                       "distrib_optim_fully_reshardable_mem_efficient}",
                 "False",
                 "any layout reads what any other wrote; start from a Hugging Face folder"),
    NotSupported(ROLES "megatron.dist_checkpointing_path", "null",
                 "start from a Hugging Face folder: model.path"),
    NotNeeded(ROLES "megatron.dist_checkpointing_prefix", "of dist_checkpointing_path"),
    NotSupported(ROLES "megatron.override_mcore_model_config.**", "{}",
                 "change config.json of the model's folder"),
    NotNeeded(ROLES "megatron.override_{ddp,transformer}_config.**",
              "model.enable_gradient_checkpointing says what is recomputed; the rest is Keel's"),
    NotNeeded(ROLES "megatron.{use_mbridge,vanilla_mbridge,use_remove_padding,forward_only,pad_to_"
                    "length,pad_to_length_bucket,pad_bshd_to_minibatch_max,entropy_from_logits_"
                    "with_chunking,entropy_from_logits_chunk_size}",
              kVerlHow),
    NotNeeded(ROLES "{megatron,fsdp_config,fsdp,torchtitan,veomni}.seed",
              "trainer.seed is the run's"),
    NotSupported(ROLES "{megatron.,fsdp_config.,fsdp.,}qat.enable", "False", kVerlQuantized),
    NotNeeded(ROLES "{megatron.,fsdp_config.,fsdp.,}qat.**", "of qat.enable"),
    NotNeeded(ROLLOUT "qat.**", "of qat.enable"),
    NotSupported(ROLES "{fsdp_config,fsdp}.model_dtype", "fp32",
                 "masters are fp32; model.dtype is that of the computation"),
    NotSupported(ROLES "{fsdp_config,fsdp}.offload_policy", "False",
                 "megatron.param_offload and optimizer_offload"),
    NotNeeded(ROLES "{fsdp_config,fsdp,torchtitan,veomni}.**", kVerlEngine),
    NotNeeded("critic.model.fsdp_config.**", kVerlEngine),

    // reference
    Taken(REF "log_prob_micro_batch_size_per_gpu", "null"),
    NotSupported("actor_rollout_ref.{ref,rollout}.log_prob_micro_batch_size", "null",
                 "ref.log_prob_micro_batch_size_per_gpu"),
    NotNeeded("actor_rollout_ref.{ref,rollout}.log_prob_{max_token_len_per_gpu,use_dynamic_bsz}",
              kVerlMemoryAlone),
    NotNeeded(ROLLOUT "log_prob_micro_batch_size_per_gpu",
              "log-probabilities are computed in the actor's micro-batches"),

    // generation
    Taken(ROLLOUT "n", "1"),
    Taken(ROLLOUT "temperature", "1.0"),
    Taken(ROLLOUT "top_k", "-1"),
    Taken(ROLLOUT "top_p", "1"),
    Taken(ROLLOUT "{min_p,repetition_penalty,block_size}", ""),
    Taken(ROLLOUT "ignore_eos", "False"),
    Taken(ROLLOUT "seed", "42"),
    Taken(ROLLOUT "dtype", "bfloat16", AsDtype),
    Taken(ROLLOUT "enforce_eager", "False"),
    Taken(ROLLOUT "max_num_batched_tokens", "8192"),
    Taken(ROLLOUT "max_num_seqs", "256"),
    Taken(ROLLOUT "max_model_len", "null"),
    Taken(ROLLOUT "enable_chunked_prefill", "True"),
    Taken(ROLLOUT "enable_prefix_caching", "True"),
    Taken(ROLLOUT "gpu_memory_utilization", "0.5"),
    Taken(ROLLOUT "free_cache_engine", "True"),
    Taken(ROLLOUT "tensor_model_parallel_size", "2"),
    Taken(ROLLOUT "calculate_log_probs", "True"),
    Taken(ROLLOUT "logprobs_mode", "processed_logprobs"),
    Taken(ROLLOUT "checkpoint_engine.update_weights_bucket_megabytes", "2048"),
    Taken(ROLLOUT "val_kwargs.n", "1"),
    Taken(ROLLOUT "val_kwargs.temperature", "0"),
    Taken(ROLLOUT "val_kwargs.top_k", "-1"),
    Taken(ROLLOUT "val_kwargs.top_p", "1.0"),
    Taken(ROLLOUT "val_kwargs.do_sample", "False"),
    Taken(ROLLOUT "multi_turn.enable", "False"),
    Taken(ROLLOUT "multi_turn.tool_config_path", "null"),
    Taken(ROLLOUT "multi_turn.max_assistant_turns", "null"),
    Taken(ROLLOUT "multi_turn.max_user_turns", "null"),
    Taken(ROLLOUT "multi_turn.max_parallel_calls", "1"),
    Taken(ROLLOUT "multi_turn.max_tool_response_length", "256"),
    Taken(ROLLOUT "multi_turn.tool_response_truncate_side", "middle"),
    Taken(ROLLOUT "multi_turn.format", "hermes"),
    NotSupported(ROLLOUT "multi_turn.function_tool_path", "null",
                 "tools are programs or services: rollout.multi_turn.tool_config_path"),
    Taken(ROLLOUT "multi_turn.interaction_config_path", "null"),
    NotNeeded(ROLLOUT "multi_turn.{num_repeat_rollouts,tokenization_sanity_check_mode,"
                      "use_inference_chat_template}",
              "nothing that was generated is tokenized again"),
    NotSupported(ROLLOUT "do_sample", "True", "rollout.temperature is above 0 in training"),
    NotSupported(ROLLOUT "{data_parallel_size,expert_parallel_size,pipeline_model_parallel_size}",
                 "1", "rollout.tensor_model_parallel_size; all other ranks are replicas"),
    NotSupported(ROLLOUT "over_sample_rate", "0", "every sample is waited for"),
    NotSupported(ROLLOUT "{quantization,quantization_config_file}", "null", kVerlQuantized),
    NotSupported(ROLLOUT "enable_rollout_routing_replay", "False",
                 "experts are routed anew in training"),
    NotSupported(ROLLOUT "disaggregation.enabled", "False", kVerlSplit),
    NotNeeded(ROLLOUT "disaggregation.**", "of disaggregation.enabled"),
    NotSupported(ROLLOUT "nnodes", "0", kVerlSplit),
    NotNeeded(ROLLOUT "n_gpus_per_node", "the ranks that train generate, in turns"),
    NotSupported(ROLLOUT "agent.{agent_loop_config_path,custom_async_server.path}", "null",
                 "rollout.multi_turn is the loop of tools"),
    NotNeeded(ROLLOUT "agent.**", kVerlOwnEngine),
    NotSupported(ROLLOUT "checkpoint_engine.custom_backend_module", "null",
                 "weights go shard to shard by a plan of Keel's"),
    NotNeeded(ROLLOUT "checkpoint_engine.**", "weights go shard to shard by a plan of Keel's"),
    NotSupported(ROLLOUT "prometheus.enable", "False", kVerlProfiler),
    NotNeeded(ROLLOUT "prometheus.**", "of prometheus.enable"),
    NotSupported(ROLLOUT "trace.backend", "null",
                 "trainer.rollout_data_dir writes prompts, responses and scores"),
    NotNeeded(ROLLOUT "trace.**", "of trace.backend"),
    NotNeeded(ROLLOUT "{prompt_length,response_length}",
              "data.max_prompt_length and data.max_response_length are the rollout's"),
    NotNeeded(ROLLOUT "full_determinism", "draws depend on the seed, prompt, sample and position"),
    NotNeeded(ROLLOUT
              "{name,mode,load_format,layered_summon,cudagraph_capture_sizes,"
              "disable_log_stats,skip_tokenizer_init,scheduling_policy,multi_stage_wake_up,"
              "moe_load_balance_metrics_interval,router_config_path,limit_images,swap_space,"
              "use_fire_sampling}",
              kVerlOwnEngine),
    NotNeeded(ROLLOUT "{engine_kwargs,mtp,update_weights}.**", kVerlOwnEngine),

    // critic
    Taken("critic.enable", "null"),
    Taken("critic.model.path", ""),
    Taken("critic.ppo_mini_batch_size",
          "${oc.select:actor_rollout_ref.actor.ppo_mini_batch_size,256}"),
    Taken("critic.ppo_micro_batch_size_per_gpu", "${oc.select:.ppo_micro_batch_size,null}"),
    Taken("critic.ppo_epochs", "${oc.select:actor_rollout_ref.actor.ppo_epochs,1}"),
    Taken("critic.cliprange_value", "0.5"),
    Taken("critic.loss_agg_mode", "${oc.select:actor_rollout_ref.actor.loss_agg_mode,token-mean}"),
    NotSupported("critic.loss_scale_factor",
                 "${oc.select:actor_rollout_ref.actor.loss_scale_factor,null}",
                 "the actor's is the critic's"),
    NotSupported("critic.shuffle", "${oc.select:actor_rollout_ref.actor.shuffle,false}",
                 "the actor's is the critic's"),
    NotNeeded("critic.forward_{micro_batch_size,micro_batch_size_per_gpu,max_token_len_per_gpu}",
              kVerlMemoryAlone),

    // checkpoints
    Taken(ACTOR "checkpoint.save_contents", "[model, optimizer, extra]", AsList),
    Taken(ACTOR "checkpoint.load_contents", "${.save_contents}", AsList),
    Taken(ACTOR "checkpoint.async_save", ""),
    NotNeeded(ACTOR "checkpoint.{strict,mbridge_config}",
              "all that is not in load_allow_missing has to match"),
    NotNeeded("critic.checkpoint.**", kVerlOneCheckpoint),

    // algorithm
    Taken("algorithm.adv_estimator", "gae"),
    Taken("algorithm.gamma", "1.0"),
    Taken("algorithm.lam", "1.0"),
    Taken("algorithm.norm_adv_by_std_in_grpo", "True"),
    Taken("algorithm.use_kl_in_reward", "False"),
    Taken("algorithm.kl_penalty", "kl"),
    Taken("algorithm.kl_ctrl.type", "fixed"),
    Taken("algorithm.kl_ctrl.kl_coef", "0.001"),
    Taken("algorithm.kl_ctrl.horizon", "10000"),
    Taken("algorithm.kl_ctrl.target_kl", "0.1"),
    Taken("algorithm.filter_groups.enable", "False"),
    Taken("algorithm.filter_groups.metric", "reward", AsFilterMetric),
    Taken("algorithm.filter_groups.max_num_gen_batches", "0"),
    NotNeeded("algorithm.filter_groups.max_inflight_gen_batches",
              "a batch is generated when it is known to be needed"),
    Taken("algorithm.rollout_correction.rollout_is", "null"),
    Taken("algorithm.rollout_correction.rollout_is_threshold", "2.0"),
    Taken("algorithm.rollout_correction.rollout_is_batch_normalize", "False"),
    Taken("algorithm.rollout_correction.rollout_rs", "null"),
    Taken("algorithm.rollout_correction.rollout_rs_threshold", "null"),
    Taken("algorithm.rollout_correction.bypass_mode", "False"),
    Taken("algorithm.rollout_correction.loss_type", "ppo_clip"),
    Taken("algorithm.gdpo_reward_keys", "[]"),
    Taken("algorithm.gdpo_reward_weights", "[]"),
    NotSupported("algorithm.use_pf_ppo", "False", "algorithm.filter_groups chooses samples"),
    NotNeeded("algorithm.pf_ppo.**", "of use_pf_ppo"),

    // rewards
    Taken("reward.custom_reward_function.path", "null"),
    Taken("reward.custom_reward_function.name", "compute_score"),
    Taken("reward.custom_reward_function.reward_kwargs", ""),
    Renamed("custom_reward_function.reward_kwargs", "",
            "reward.custom_reward_function.reward_kwargs"),
    Taken("reward.num_workers", ""),
    Renamed("custom_reward_function.path", "null", "reward.custom_reward_function.path"),
    Renamed("custom_reward_function.name", "null|compute_score",
            "reward.custom_reward_function.name"),
    Renamed("{reward,reward_model}.reward_kwargs.overlong_buffer_cfg.enable", "False",
            "reward.overlong_buffer.enable"),
    Renamed("{reward,reward_model}.reward_kwargs.overlong_buffer_cfg.len", "",
            "reward.overlong_buffer.len"),
    Renamed("{reward,reward_model}.reward_kwargs.overlong_buffer_cfg.penalty_factor", "",
            "reward.overlong_buffer.penalty_factor"),
    // The names of DAPO's first scripts.
    Renamed("{reward_model,custom_reward_function}.overlong_buffer.enable", "False",
            "reward.overlong_buffer.enable"),
    Renamed("{reward_model,custom_reward_function}.overlong_buffer.len", "",
            "reward.overlong_buffer.len"),
    Renamed("{reward_model,custom_reward_function}.overlong_buffer.penalty_factor", "",
            "reward.overlong_buffer.penalty_factor"),
    NotNeeded("{reward.reward_kwargs.overlong_buffer_cfg,reward_model.reward_kwargs.overlong_"
              "buffer_cfg,reward_model.overlong_buffer,custom_reward_function.overlong_buffer}.log",
              "metrics have every part of the reward"),
    NotNeeded("{reward,reward_model}.reward_kwargs.max_resp_len",
              "data.max_response_length is what the buffer ends at"),
    NotSupported("reward.reward_manager.name", "naive|dapo", kVerlNoRewardModel),
    NotSupported("reward.reward_manager.module.path", "null", kVerlNoRewardModel),
    NotNeeded("reward.reward_manager.{source,module.name}", "of reward_manager.module.path"),
    NotSupported("{reward.,}reward_model.enable", "False|null", kVerlNoRewardModel),
    NotNeeded("{reward.,}reward_model.**", "of reward_model.enable"),
    NotSupported("reward_model.reward_manager", "null|naive|dapo", kVerlNoRewardModel),
    NotSupported("reward_model.{reward_loop_class_name,reward_loop_module_path}", "null",
                 kVerlNoRewardModel),
    NotSupported("{reward.,}sandbox_fusion.url", "null",
                 "reward.command or reward.url runs code where you choose"),
    NotNeeded("{reward.,}sandbox_fusion.**", "of sandbox_fusion.url"),

    // the run
    Taken("trainer.total_epochs", "30"),
    Taken("trainer.total_training_steps", "null"),
    Taken("trainer.logger", "[console, wandb]", AsLoggers),
    Taken("trainer.default_local_dir",
          "checkpoints/${trainer.project_name}/${trainer.experiment_name}"),
    Taken("trainer.save_freq", "-1"),
    Taken("trainer.test_freq", "-1"),
    Taken("trainer.val_before_train", "True"),
    Taken("trainer.critic_warmup", "0"),
    Taken("trainer.resume_mode", "auto"),
    Taken("trainer.resume_from_path", "null"),
    Taken("trainer.rollout_data_dir", "null"),
    Taken("trainer.validation_data_dir", "null"),
    Taken("trainer.log_val_generations", "0"),
    Taken("trainer.device", ""),
    Taken("trainer.nnodes", "1"),
    Taken("trainer.n_gpus_per_node", "8"),
    Taken("trainer.remove_previous_ckpt_in_save", "False"),
    Renamed("trainer.max_actor_ckpt_to_keep", "null", "trainer.max_ckpts_to_keep"),
    NotNeeded("trainer.max_critic_ckpt_to_keep", kVerlOneCheckpoint),
    NotNeeded("trainer.project_name", "a run is its folder, trainer.default_local_dir",
              "verl_examples"),
    NotNeeded("trainer.experiment_name", "a run is its folder, trainer.default_local_dir", "gsm8k"),
    NotNeeded("trainer.balance_batch", "micro-batches are of one size"),
    NotSupported("trainer.val_only", "False", "keel generate answers a file of prompts"),
    NotSupported("trainer.default_hdfs_dir", "null", "checkpoints are on file systems"),
    NotSupported("trainer.del_local_ckpt_after_load", "False", "trainer.max_ckpts_to_keep"),
    NotSupported("trainer.checkpoint_callback_class", "null",
                 "checkpoints.jsonl of the run's folder says of each when it is there"),
    NotSupported("trainer.esi_redundant_time", "0",
                 "trainer.save_before_deadline and trainer.preemption_grace_seconds"),
    NotNeeded("trainer.ray_wait_register_center_timeout", kVerlNoRay),
    NotNeeded("trainer.{use_v1,use_legacy_worker_impl}", "there is one trainer"),
    NotSupported("trainer.v1.trainer_mode", "sync", kVerlSplit),
    NotSupported("trainer.v1.sampler.custom_sampler.path", "null", kVerlSplit),
    NotNeeded("trainer.v1.**", "of trainer.v1.trainer_mode"),
    NotNeeded("actor_rollout_ref.hybrid_engine", "async_training.placement says who generates"),
    NotNeeded("{actor_rollout_ref,critic}.nccl_timeout",
              "trainer.deadline_seconds is every wait's"),
    NotNeeded("{ray_kwargs,transfer_queue}.**", kVerlNoRay),

    // profilers, teachers
    NotSupported("{actor_rollout_ref.actor,actor_rollout_ref.ref,actor_rollout_ref.rollout,critic}."
                 "profiler.enable",
                 "False|${oc.select:actor_rollout_ref.actor.profiler.enable,false}", kVerlProfiler),
    NotNeeded("{actor_rollout_ref.actor,actor_rollout_ref.ref,actor_rollout_ref.rollout,critic}."
              "profiler.**",
              kVerlProfiler),
    NotSupported("global_profiler.{tool,steps}", "null", kVerlProfiler),
    NotNeeded("global_profiler.**", kVerlProfiler),
    NotSupported("skip.{rollout,async_rollout,rollout_tq}.enable", "False",
                 "trainer.rollout_replay_dir"),
    NotNeeded("skip.**", "of skip.*.enable"),
    NotSupported("distillation.enabled", "False", kVerlDistill),
    NotNeeded("distillation.**", kVerlDistill),
});

#undef ACTOR
#undef REF
#undef ROLLOUT
#undef MODEL
#undef LEARNERS
#undef ROLES
#undef MODELS

}  // namespace

std::span<const Row> VerlRows() { return kVerlRows; }

}  // namespace keel::trainer::foreign
