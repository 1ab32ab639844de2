# What `cmake --install BUILD --prefix P` puts beside the program and its modules: configurations, scripts, pages of
# the manual, completion of the shells, documents. All of it is of the component `runtime`, which tools/package.sh packs.
# Nothing in P knows where P is: it may be moved.
#
#   P/bin/keel                     finds its modules in ../lib/keel
#   P/lib/keel/                    libkeel_torch.so, libkeel_watch.so, libkeel_cuda.so, libkeel_arrow.so; PyTorch is
#                                  the user's own
#   P/share/keel/                  configs/ with the editor's schema, tools/, examples/
#   P/share/doc/keel/              README, CHANGELOG, LICENSE, docs/
#   P/share/man/                   keel.1 and one of each command, keel.yaml.5
#   P/share/bash-completion/, zsh/, fish/
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

install(DIRECTORY configs/ DESTINATION share/keel/configs COMPONENT runtime)
install(DIRECTORY examples/ DESTINATION share/keel/examples COMPONENT runtime USE_SOURCE_PERMISSIONS)
install(PROGRAMS tools/export_mlflow.py tools/export_wandb.py DESTINATION share/keel/tools COMPONENT runtime)
install(FILES tools/metrics_lines.py DESTINATION share/keel/tools COMPONENT runtime)
install(FILES README.md CHANGELOG.md LICENSE DESTINATION share/doc/keel COMPONENT runtime)
install(DIRECTORY docs DESTINATION share/doc/keel COMPONENT runtime FILES_MATCHING PATTERN "*.md")

# Written by the program itself, from the tables of its commands.
set(_generated "${CMAKE_BINARY_DIR}/installed")
install(CODE "
  file(REMOVE_RECURSE \"${_generated}\")
  file(MAKE_DIRECTORY \"${_generated}\")
  execute_process(COMMAND \"$<TARGET_FILE:keel>\" man --out \"${_generated}/man\" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  foreach(shell bash zsh fish)
    execute_process(COMMAND \"$<TARGET_FILE:keel>\" completion \${shell} OUTPUT_FILE \"${_generated}/\${shell}\" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
" COMPONENT runtime)
install(DIRECTORY "${_generated}/man" DESTINATION share COMPONENT runtime)
install(FILES "${_generated}/bash" DESTINATION share/bash-completion/completions RENAME keel COMPONENT runtime)
install(FILES "${_generated}/zsh" DESTINATION share/zsh/vendor-completions RENAME _keel COMPONENT runtime)
install(FILES "${_generated}/fish" DESTINATION share/fish/vendor_completions.d RENAME keel.fish COMPONENT runtime)
