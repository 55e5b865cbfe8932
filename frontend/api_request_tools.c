#include <string.h>

#include "common/json.h"
#include "frontend/api_request_internal.h"

static const char param[] = "tool_choice";

/* {"type": "function", "function": {"name": ...}} */
static enum err_code read_named(const struct json_t *choice, const struct json_t *tools,
                                struct api_request *request, struct api_error *error)
{
    const struct json_t *function = api_request_given(choice, "function");
    bool is_function = function && json_kind(function) == JSON_KIND_OBJECT;
    enum err_code code =
        is_function ? api_request_read_text(function, "name", &request->tool_name, error) : ERR_OK;
    if (code || !request->tool_name.at) {
        return api_error_set(error, ERR_ARGUMENT, param,
                             "tool_choice must be 'none', 'auto', 'required' or an object that "
                             "names a function");
    }
    for (size_t i = 0; i < json_count(tools); i++) {
        const struct json_t *tool = json_member(json_element(tools, i), "function");
        const struct json_t *name = json_member(tool, "name");
        if (name && json_kind(name) == JSON_KIND_TEXT &&
            strcmp(json_text(name, NULL), request->tool_name.at) == 0) {
            request->tool_choice = API_TOOL_CHOICE_NAMED;
            return ERR_OK;
        }
    }
    return api_error_set(error, ERR_ARGUMENT, param,
                         "tool_choice names '%.64s', which is none of the request's tools",
                         request->tool_name.at);
}

static enum err_code read_word(const char *text, struct api_request *request,
                               struct api_error *error)
{
    static const struct {
        const char *text;
        enum api_tool_choice choice;
    } rows[] = {
        {"auto", API_TOOL_CHOICE_AUTO},
        {"none", API_TOOL_CHOICE_NONE},
        {"required", API_TOOL_CHOICE_REQUIRED},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strcmp(rows[i].text, text) == 0) {
            request->tool_choice = rows[i].choice;
            return ERR_OK;
        }
    }
    return api_error_set(error, ERR_ARGUMENT, param,
                         "tool_choice '%.32s' is none of none, auto, required", text);
}

enum err_code api_request_read_tool_choice(const struct json_t *body, const struct json_t *tools,
                                           struct api_request *request, struct api_error *error)
{
    const struct json_t *choice = api_request_given(body, param);
    enum err_code code = ERR_OK;
    if (!choice) {
        return ERR_OK;
    }
    if (json_kind(choice) == JSON_KIND_TEXT) {
        code = read_word(json_text(choice, NULL), request, error);
    } else if (json_kind(choice) == JSON_KIND_OBJECT) {
        code = read_named(choice, tools, request, error);
    } else {
        code = api_request_wrong_kind(choice, param, "a string or an object", error);
    }
    bool has_tools = tools && json_count(tools) > 0;
    if (!code && request->tool_choice != API_TOOL_CHOICE_NONE && !has_tools) {
        code = api_error_set(error, ERR_ARGUMENT, param, "tool_choice needs tools to choose from");
    }
    return code;
}
