# SPDX-License-Identifier: MIT
#
# ckpt_add_plugin(NAME file.c ... [file.proto ...]): builds ckpt-NAME.so from C sources and .proto
# files (compiled with protoc-c). Used by the built-in plugins and, from the installed package
# ckpt-plugin, by everyone else's.

function(ckpt_compile_protos out)
  set(generated)
  foreach(proto ${ARGN})
    get_filename_component(path ${proto} ABSOLUTE)
    get_filename_component(dir ${path} DIRECTORY)
    get_filename_component(stem ${path} NAME_WE)
    set(base ${CMAKE_CURRENT_BINARY_DIR}/${stem}.pb-c)
    add_custom_command(
      OUTPUT ${base}.c ${base}.h
      COMMAND ${PROTOC_C} --proto_path=${dir} --c_out=${CMAKE_CURRENT_BINARY_DIR} ${path}
      DEPENDS ${path} VERBATIM)
    list(APPEND generated ${base}.c ${base}.h)
  endforeach()
  set(${out} ${generated} PARENT_SCOPE)
endfunction()

function(ckpt_add_plugin name)
  set(sources ${ARGN})
  set(protos ${sources})
  list(FILTER protos INCLUDE REGEX "\\.proto$")
  list(FILTER sources EXCLUDE REGEX "\\.proto$")
  ckpt_compile_protos(generated ${protos})
  if(generated)
    # protoc-c's own code does not follow our warnings
    set_source_files_properties(${generated} PROPERTIES COMPILE_OPTIONS "-w")
  endif()
  add_library(ckpt-plugin-${name} MODULE ${sources} ${generated})
  set_target_properties(ckpt-plugin-${name} PROPERTIES
    PREFIX "" OUTPUT_NAME ckpt-${name} C_STANDARD 17 C_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/plugins)
  target_compile_definitions(ckpt-plugin-${name} PRIVATE _GNU_SOURCE)
  target_include_directories(ckpt-plugin-${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR})
  target_link_libraries(ckpt-plugin-${name} PRIVATE ckpt::plugin)
  if(NOT CKPT_SANITIZE) # a sanitizer's symbols come with the program
    target_link_options(ckpt-plugin-${name} PRIVATE -Wl,--no-undefined)
  endif()
  # two segments instead of four: half of the mappings and page faults that loading it costs
  target_link_options(ckpt-plugin-${name} PRIVATE -Wl,-z,noseparate-code)
endfunction()
