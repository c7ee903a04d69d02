# Tests of the default policy on data of their own: `ostiary policy test`, or `opa test policies/bundle`.
package mcp.authz_test

import rego.v1

import data.mcp.authz

servers := {"files": {
	"description": "A file server",
	"environments": ["production"],
	"scopes": ["mcp:use"],
	"tools": {
		"read_file": {"effect": "read", "scopes": ["files:read"], "clear": ["/path"]},
		"delete_file": {
			"effect": "write",
			"scopes": ["files:write"],
			"approval": {"approvers": ["group:https://idp.example|ops"], "min_approvers": 2, "uses": 1, "ttl_s": 900},
			"mask": ["/token"],
			"disclose": true,
		},
		"send_file": {
			"effect": "write",
			"scopes": ["files:write"],
			"approval": {"approvers": ["group:https://idp.example|ops"], "answers": "again"},
		},
		"post_file": {"effect": "write", "approval": {"approvers": ["user:x"], "answers": "covered"}},
		"answers_unknown": {"effect": "write", "approval": {"approvers": ["user:x"], "answers": "never"}},
		"touch_file": {"effect": "write", "approval": {"needed": false}},
		"move_file": {
			"effect": "write",
			"approval": {
				"approvers": ["user:x"],
				"min_approvers": 2,
				"uses": 1,
				"ttl_s": 60,
				"grant": {"schema": {"maxProperties": 2}, "uses": 5, "ttl_s": 600},
			},
		},
		"grant_unbounded": {"effect": "write", "approval": {"approvers": ["user:x"], "grant": {"uses": 5, "ttl_s": 6}}},
		"grant_uncounted": {"effect": "write", "approval": {"approvers": ["user:x"], "grant": {"schema": {}, "ttl_s": 6}}},
		"grant_timeless": {"effect": "write", "approval": {"approvers": ["user:x"], "grant": {"schema": {}, "uses": 5}}},
		"grant_misspelt": {
			"effect": "write",
			"approval": {"approvers": ["user:x"], "grant": {"schema": {}, "uses": 5, "ttl_s": 6, "shema": {}}},
		},
		"grant_true": {"effect": "write", "approval": {"approvers": ["user:x"], "grant": true}},
		"peek_file": {"effect": "read", "approval": {"approvers": ["user:https://idp.example|ann"]}},
		"unstated": {"effect": "write"},
		"silent": {},
		"nobody": {"effect": "write", "approval": {"approvers": []}},
		"misspelt": {"effect": "read", "aproval": {"approvers": ["user:x"]}},
		"wrong_effect": {"effect": "reed"},
		"closed": false,
		"acme_only": {"effect": "read", "tenants": ["acme"]},
		"staging_only": {"effect": "read", "environments": ["staging"]},
		"tenants_no_list": {"effect": "read", "tenants": false},
	},
	"prompts": {"greet": {"scopes": ["prompts:use"]}},
	"resources": {
		"notes://all": {},
		"file:///srv/public/": {"scopes": ["files:read"]},
		"file:///srv/public/secret/": false,
		"file:///srv/public/gated/": {"approval": {"approvers": ["group:https://idp.example|ops"]}},
	},
	"methods": {
		"completion/complete": {"scopes": ["complete"]},
		"subscriptions/listen": {},
		"x/gated": {"approval": {"approvers": ["user:x"]}},
		"prompts/list": false,
	},
}}

server := {"name": "files", "resource": "https://gw.example/files", "environment": "production"}

ask(method, name, arguments) := {
	"phase": "call",
	"server": server,
	"subject": {"issuer": "https://idp.example", "id": "bob", "tenant": "", "scopes": [], "claims": {}},
	"request": {"method": method, "name": name, "arguments": arguments},
	"candidates": [],
}

list(method, ids) := {
	"phase": "list",
	"server": server,
	"subject": {"issuer": "https://idp.example", "id": "bob", "tenant": "", "scopes": [], "claims": {}},
	"request": {"method": method, "name": null, "arguments": {}},
	"candidates": [{"id": id} | some id in ids],
}

decide(question) := decision if {
	decision := authz.decision with input as question with data.mcp.authz.servers as servers
}

call(name) := decide(ask("tools/call", name, {}))

read(uri) := decide(ask("resources/read", uri, {}))

denied(decision, reason) if {
	decision.effect == "deny"
	decision.reasons == [reason]
	decision.scopes == []
}

test_listed_read_is_allowed_with_the_scopes_of_server_and_tool if {
	decision := call("read_file")
	decision.effect == "allow"
	decision.scopes == ["mcp:use", "files:read"]
	decision.clear == ["/path"]
}

test_write_needs_its_approvers if {
	decision := call("delete_file")
	decision.effect == "approve"
	decision.approval == {
		"approvers": ["group:https://idp.example|ops"],
		"min_approvers": 2,
		"uses": 1,
		"ttl_s": 900,
	}
	decision.mask == ["/token"]
}

test_write_may_say_that_nobody_need_approve if call("touch_file").effect == "allow"

test_read_may_be_gated if call("peek_file").effect == "approve"

test_write_without_terms_is_denied if denied(call("unstated"), "approval_terms_missing")

test_tool_that_says_nothing_counts_as_a_write if denied(call("silent"), "approval_terms_missing")

test_gate_without_approvers_is_denied if denied(call("nobody"), "approval_terms_missing")

test_misspelt_member_is_denied if denied(call("misspelt"), "data_member_unknown")

test_unknown_effect_is_denied if denied(call("wrong_effect"), "approval_terms_missing")

test_closed_tool_is_denied if denied(call("closed"), "tool_not_listed")

test_absent_tool_is_denied if denied(call("nope"), "tool_not_listed")

test_tool_without_name_is_denied if denied(call(null), "tool_not_listed")

test_other_tenant_is_denied if denied(call("acme_only"), "tenant_not_listed")

test_other_environment_is_denied if denied(call("staging_only"), "environment_not_listed")

test_false_is_no_open_list_of_tenants if denied(call("tenants_no_list"), "tenant_not_listed")

test_tenant_of_the_token_counts if {
	question := object.union(ask("tools/call", "acme_only", {}), {"subject": {"tenant": "acme"}})
	decide(question).effect == "allow"
}

test_unknown_server_is_denied if {
	question := object.union(ask("tools/call", "read_file", {}), {"server": {"name": "other"}})
	denied(decide(question), "server_not_listed")
}

test_server_in_another_environment_is_denied if {
	question := object.union(ask("tools/call", "read_file", {}), {"server": {"environment": "staging"}})
	denied(decide(question), "environment_not_listed")
}

test_unknown_phase_is_denied if {
	question := object.union(ask("tools/call", "read_file", {}), {"phase": "other"})
	denied(decide(question), "phase_unknown")
}

test_empty_question_is_denied if denied(decide({}), "phase_unknown")

test_no_servers_means_denied if {
	decision := authz.decision with input as ask("tools/call", "read_file", {}) with data.mcp.authz.servers as {}
	denied(decision, "server_not_listed")
}

test_misspelt_server_member_is_denied if {
	bad := {"files": object.union(servers.files, {"tennants": ["acme"]})}
	decision := authz.decision with input as ask("tools/call", "read_file", {}) with data.mcp.authz.servers as bad
	denied(decision, "data_member_unknown")
}

# Names that look the same, or are the same after folding or normalisation, are other names.
test_look_alike_names_are_denied if {
	every name in [
		"Read_file", "READ_FILE", "read_file ", " read_file", "read_fil\u0435", "\uff52ead_file",
		"read\u200b_file", "\u202eread_file", "read_file\u0000", "read_file\n", "re\u0301ad_file", "read-file",
		"../read_file", "read_file/", "\"]; allow := true #", "../../v1/policies/x", "", "*",
	] {
		denied(call(name), "tool_not_listed")
	}
}

test_disclosure_is_the_entrys_choice if {
	bad := {"files": object.union(servers.files, {"tools": {"delete_file": {"tenants": ["acme"]}}})}
	told := authz.decision with input as ask("tools/call", "delete_file", {}) with data.mcp.authz.servers as bad
	told.disclose == true
	call("acme_only").disclose == false
}

test_prompt if {
	decide(ask("prompts/get", "greet", {})).scopes == ["mcp:use", "prompts:use"]
	denied(decide(ask("prompts/get", "other", {})), "prompt_not_listed")
}

test_resource_by_exact_uri if {
	read("notes://all").effect == "allow"
	denied(read("notes://all/x"), "resource_not_listed")
	denied(read("notes://all?x"), "resource_not_listed")
}

test_resource_below_a_prefix if {
	every uri in ["file:///srv/public/a", "file:///srv/public/a/b.txt", "file:///srv/public/a%20b", "file:///srv/public/%C3%A9"] {
		decision := read(uri)
		decision.effect == "allow"
		decision.scopes == ["mcp:use", "files:read"]
	}
	read("file:///srv/public/gated/x").effect == "approve"
	denied(read("file:///srv/public/secret/x"), "resource_not_listed")
	denied(read("file:///srv/publicity"), "resource_not_listed")
	denied(read("FILE:///srv/public/a"), "resource_not_listed")
	denied(read("file:///etc/passwd"), "resource_not_listed")
}

test_resource_with_two_readings_is_denied if {
	every rest in [
		"../x", "a/../../x", "a/..", "./x", "a/./x", ".../x", "%2e%2e/x", "%2E%2E/x", ".%2E/x", "..%2Fx", "..\\x",
		"%252e%252e/x", "a%00", "a%0a", "a%5Cx", "%73ecret/x", "secret%2Fx", "%c3%a9", "%C0%AE%C0%AE/x", "a b", "é",
		"//etc/passwd", "/etc/passwd", "a//b", "a%", "a%4", "a%zz", "a?../x", "a#../x", "..;/x", "..;a=b/x", "a\nb", "a\u200bb",
		"x://y", "%3B", "{x}", "a|b", "a\"b", "a<b",
	] {
		denied(read(concat("", ["file:///srv/public/", rest])), "resource_uri_not_normal")
	}
}

test_lists_of_named_sections_are_open if {
	decide(ask("tools/list", null, {})).effect == "allow"
	decide(ask("resources/list", null, {})).effect == "allow"
	decide(ask("resources/templates/list", null, {})).effect == "allow"
	decide(ask("server/discover", null, {})).effect == "allow"
}

test_closed_method_is_denied if denied(decide(ask("prompts/list", null, {})), "method_not_listed")

test_unlisted_method_is_denied if denied(decide(ask("x/unlisted", null, {})), "method_not_listed")

test_list_of_a_section_without_data_is_denied if {
	bare := {"files": {"tools": {}}}
	decision := authz.decision with input as ask("prompts/list", null, {}) with data.mcp.authz.servers as bare
	denied(decision, "method_not_listed")
}

test_gate_on_a_method_that_cannot_be_gated_is_denied if denied(decide(ask("x/gated", null, {})), "approval_not_possible")

test_completion_needs_what_it_completes if {
	ref := {"ref": {"type": "ref/prompt", "name": "greet"}}
	decide(ask("completion/complete", null, ref)).effect == "allow"
	other := {"ref": {"type": "ref/prompt", "name": "other"}}
	denied(decide(ask("completion/complete", null, other)), "prompt_not_listed")
	denied(decide(ask("completion/complete", null, {})), "target_missing")
	odd := {"ref": {"type": "ref/tool", "name": "greet"}}
	denied(decide(ask("completion/complete", null, odd)), "target_missing")
	file := {"ref": {"type": "ref/resource", "uri": "file:///etc/passwd"}}
	denied(decide(ask("completion/complete", null, file)), "resource_not_listed")
}

test_completion_of_a_template_is_that_of_what_it_begins_with if {
	open := {"ref": {"type": "ref/resource", "uri": "file:///srv/data/{+path}"}}
	shut := {"ref": {"type": "ref/resource", "uri": "file:///etc/{name}"}}
	loose := {"ref": {"type": "ref/resource", "uri": "file:///srv/data{name}"}}
	data_ := {"files": {"methods": {"completion/complete": {}}, "resources": {"file:///srv/data/": {}}}}
	decide_on(data_, open).effect == "allow"
	denied(decide_on(data_, shut), "resource_not_listed")
	denied(decide_on(data_, loose), "resource_not_listed")
}

decide_on(data_, ref) := decision if {
	decision := authz.decision with input as ask("completion/complete", null, ref) with data.mcp.authz.servers as data_
}

test_completion_asks_for_all_scopes if {
	ref := {"ref": {"type": "ref/prompt", "name": "greet"}}
	{scope | some scope in decide(ask("completion/complete", null, ref)).scopes} == {"mcp:use", "complete", "prompts:use"}
}

test_subscription_needs_every_resource if {
	decide(ask("subscriptions/listen", null, {"notifications": {"toolsListChanged": true}})).effect == "allow"
	good := {"notifications": {"resourceSubscriptions": ["notes://all"]}}
	decide(ask("subscriptions/listen", null, good)).effect == "allow"
	bad := {"notifications": {"resourceSubscriptions": ["notes://all", "file:///etc/passwd"]}}
	denied(decide(ask("subscriptions/listen", null, bad)), "resource_not_listed")
	text := {"notifications": {"resourceSubscriptions": "file:///etc/passwd"}}
	denied(decide(ask("subscriptions/listen", null, text)), "target_missing")
	denied(decide(ask("subscriptions/listen", null, {})), "target_missing")
}

test_subscription_to_a_gated_resource_is_denied if {
	gated := {"notifications": {"resourceSubscriptions": ["file:///srv/public/gated/x"]}}
	denied(decide(ask("subscriptions/listen", null, gated)), "approval_not_possible")
}

# Listed if and only if a call would not be denied.
test_tools_are_listed_if_callable if {
	ids := [name | some name, _ in servers.files.tools]
	decision := decide(list("tools/list", array.concat(ids, ["nope", "READ_FILE"])))
	decision.effect == "allow"
	decision.visible == [id | some id in ids; call(id).effect != "deny"]
	count(decision.visible) == 7
}

test_resources_are_listed_if_readable if {
	ids := ["notes://all", "file:///srv/public/a", "file:///srv/public/secret/a", "file:///srv/public/../a", "file:///x"]
	decide(list("resources/list", ids)).visible == ["notes://all", "file:///srv/public/a"]
}

test_templates_are_listed_below_a_prefix if {
	ids := ["file:///srv/public/{name}", "file:///srv/public/secret/{name}", "file:///{name}", "{+any}", "notes://all"]
	decide(list("resources/templates/list", ids)).visible == ["file:///srv/public/{name}"]
}

test_list_of_an_unknown_server_shows_nothing if {
	question := object.union(list("tools/list", ["read_file"]), {"server": {"name": "other"}})
	denied(decide(question), "server_not_listed")
}

test_call_phase_shows_nothing if {
	question := object.union(list("tools/list", ["read_file"]), {"phase": "call"})
	decide(question).visible == []
}

# ------------------------------------------------------------------ tasks

about(method, tools) := object.union(ask(method, "h", {}), {"request": {"tasks": [made_by(tool) | some tool in tools]}})

made_by(tool) := {"id": "h", "tool": tool, "approved": false}

task_methods := {"tasks/get", "tasks/update", "tasks/cancel"}

test_task_is_as_callable_as_its_tool if {
	every method in task_methods {
		decide(about(method, ["read_file"])) == {
			"effect": "allow",
			"scopes": ["mcp:use", "files:read"],
			"reasons": ["allowed"],
			"visible": [],
			"any_arguments": false,
		}
		denied(decide(about(method, ["closed"])), "tool_not_listed")
		denied(decide(about(method, ["absent"])), "tool_not_listed")
		denied(decide(about(method, ["acme_only"])), "tenant_not_listed")
		denied(decide(about(method, ["staging_only"])), "environment_not_listed")
		denied(decide(about(method, ["misspelt"])), "data_member_unknown")
		denied(decide(about(method, ["unstated"])), "approval_terms_missing")
	}
}

test_what_is_no_task_of_the_callers_is_left_to_the_gateway if {
	every method in task_methods {
		decide(about(method, [null])).effect == "allow"
		decide(about(method, [null])).scopes == ["mcp:use"]
	}
}

test_request_about_no_or_several_tasks_is_denied if {
	every method in task_methods {
		denied(decide(ask(method, "h", {})), "target_missing")
		denied(decide(about(method, [])), "target_missing")
		denied(decide(about(method, ["read_file", "read_file"])), "target_missing")
	}
}

test_task_of_a_gated_tool_takes_no_new_input_unsaid if {
	decide(about("tasks/get", ["delete_file"])).effect == "allow"
	decide(about("tasks/cancel", ["delete_file"])).effect == "allow"
	denied(decide(about("tasks/update", ["delete_file"])), "approval_not_possible")
	said := object.union(servers, {"files": {"methods": {"tasks/update": {"approval": {"needed": false}}}}})
	decision := authz.decision with input as about("tasks/update", ["delete_file"])
		with data.mcp.authz.servers as said
	decision.effect == "allow"
	decision.scopes == ["mcp:use", "files:write"]
}

test_held_call_takes_what_its_leg_is_judged_by if {
	held := [{"id": "h", "tool": "delete_file", "approved": false, "held": true}]
	question := object.union(ask("tasks/update", "h", {}), {"request": {"tasks": held}})
	decide(question).effect == "allow"
	closed := [{"id": "h", "tool": "closed", "approved": false, "held": true}]
	denied(decide(object.union(question, {"request": {"tasks": closed}})), "tool_not_listed")
}

test_task_method_can_be_closed_or_narrowed if {
	shut := object.union(servers, {"files": {"methods": {"tasks/cancel": false}}})
	closed := authz.decision with input as about("tasks/cancel", ["read_file"]) with data.mcp.authz.servers as shut
	denied(closed, "method_not_listed")
	narrow := object.union(servers, {"files": {"methods": {"tasks/cancel": {"scopes": ["tasks:cancel"]}}}})
	decision := authz.decision with input as about("tasks/cancel", ["read_file"]) with data.mcp.authz.servers as narrow
	{scope | some scope in decision.scopes} == {"mcp:use", "files:read", "tasks:cancel"}
}

test_server_without_tools_has_no_tasks if {
	bare := {"files": {"prompts": {}}}
	every method in task_methods {
		decision := authz.decision with input as about(method, [null]) with data.mcp.authz.servers as bare
		denied(decision, "method_not_listed")
	}
}

following(ids, tools) := object.union(
	ask("subscriptions/listen", null, {"notifications": {"taskIds": ids}}),
	{"request": {"tasks": [made_by(tool) | some tool in tools]}},
)

test_subscription_to_tasks_needs_their_tools if {
	decide(following(["h"], ["read_file"])).effect == "allow"
	"files:read" in decide(following(["h"], ["read_file"])).scopes
	decide(following(["h", "h"], ["read_file", "delete_file"])).effect == "allow"
	denied(decide(following(["h", "h"], ["read_file", "closed"])), "tool_not_listed")
	denied(decide(following(["other"], ["read_file"])), "target_missing")
	denied(decide(following(["h"], [])), "target_missing")
	denied(decide(following("h", ["read_file"])), "target_missing")
}

# ------------------------------------------------------------------ legs of a call that a person approved

leg(name, approved) := decide(object.union(
	ask("tools/call", name, {}),
	{"request": {"leg": 1, "approved": approved, "input_responses": {"q": {"action": "accept"}}}},
))

test_an_approved_call_goes_on_with_its_answers if {
	every name in ["delete_file", "post_file"] {
		decision := leg(name, true)
		decision.effect == "allow"
		decision.reasons == ["approved_call_continued"]
	}
	leg("delete_file", true).scopes == ["mcp:use", "files:write"]
	leg("delete_file", true).mask == ["/token"]
}

test_answers_are_approved_again_where_the_data_wants_it if {
	leg("send_file", true).effect == "approve"
	object.keys(leg("send_file", true).approval) == {"approvers"}
}

test_a_leg_of_a_call_that_nobody_approved_needs_an_approval if {
	every name in ["delete_file", "post_file", "send_file", "peek_file"] { leg(name, false).effect == "approve" }
	every strange in ["true", 1, null] { leg("delete_file", strange).effect == "approve" }
}

test_a_leg_opens_nothing_that_is_closed if {
	every name in ["closed", "absent", "unstated", "nobody"] { leg(name, true).effect == "deny" }
}

test_an_unknown_word_about_answers_is_a_denial if {
	call("answers_unknown").reasons == ["approval_terms_missing"]
	leg("answers_unknown", true).effect == "deny"
}

grant(name) := decide(object.union(
	ask("tools/call", name, {}),
	{"request": {"grant": {"schema": {"type": "object"}}}},
))

test_a_grant_has_the_terms_of_the_data if {
	grant("move_file").effect == "approve"
	grant("move_file").approval == {
		"approvers": ["user:x"],
		"min_approvers": 2,
		"uses": 5,
		"ttl_s": 600,
		"grant": {"schema": {"maxProperties": 2}},
	}
}

test_a_call_of_the_same_tool_has_those_of_a_call if {
	call("move_file").approval == {"approvers": ["user:x"], "min_approvers": 2, "uses": 1, "ttl_s": 60}
}

test_no_grant_where_the_data_names_none if {
	every name in ["delete_file", "post_file"] { not "grant" in object.keys(grant(name).approval) }
}

test_a_grant_that_is_half_stated_closes_the_tool if {
	every name in ["grant_unbounded", "grant_uncounted", "grant_timeless", "grant_misspelt", "grant_true"] {
		denied(call(name), "approval_terms_missing")
		denied(grant(name), "approval_terms_missing")
	}
}

test_a_grant_opens_nothing_that_is_closed if {
	every name in ["closed", "absent", "unstated", "nobody"] { grant(name).effect == "deny" }
}
