# Tests of what a call may say, when, and how often: the members `arguments`, `steps`, `hours` and `budgets`.
package mcp.authz_test

import rego.v1

import data.mcp.authz

# What one tool with this data answers to a call with these arguments, at this time.
of_tool(entry, arguments, at) := decision if {
	question := object.union(ask("tools/call", "t", arguments), {"now_ns": time.parse_rfc3339_ns(at)})
	data_of_one := {"files": {"tools": {"t": entry}}}
	decision := authz.decision with input as question with data.mcp.authz.servers as data_of_one
}

of_rule(rule, value) := of_tool({"effect": "read", "arguments": {"/x": rule}}, {"x": value}, "2026-11-30T12:00:00Z")

fits(rule, value) if of_rule(rule, value).effect == "allow"

refused(rule, value) if denied(of_rule(rule, value), "argument_not_allowed")

test_argument_that_is_not_there_is_denied_unless_optional if {
	every given in [{}, null, [], {"y": 1}, {"X": 1}] {
		denied(of_tool({"effect": "read", "arguments": {"/x": {}}}, given, "2026-11-30T12:00:00Z"), "argument_missing")
		of_tool({"effect": "read", "arguments": {"/x": {"optional": true}}}, given, "2026-11-30T12:00:00Z").effect == "allow"
	}
}

test_argument_in_an_object_is_found_by_its_pointer if {
	entry := {"effect": "read", "arguments": {"/a~1b/c~0d": {"one_of": [1]}}}
	of_tool(entry, {"a/b": {"c~d": 1}}, "2026-11-30T12:00:00Z").effect == "allow"
	denied(of_tool(entry, {"a/b": {"c~d": 2}}, "2026-11-30T12:00:00Z"), "argument_not_allowed")
	denied(of_tool(entry, {"a/b": [1]}, "2026-11-30T12:00:00Z"), "argument_missing")
	denied(of_tool(entry, {"a/b/c~d": 1}, "2026-11-30T12:00:00Z"), "argument_missing")
}

test_argument_rule_that_cannot_be_read_denies if {
	every rule in [
		{"withn": ["/a/"]}, {"within": "/a/"}, {"within": [1]}, {"one_of": "a"}, {"sql": "write"}, {"at_most": "9"},
		{"at_least": null}, {"each": 1}, {"optional": "yes"}, [], true, null,
	] {
		denied(of_rule(rule, "/a/b"), "argument_rule_unreadable")
	}
	every rules in [[], "x", false, {"x": {}}, {"": {}}] {
		denied(of_tool({"effect": "read", "arguments": rules}, {"x": 1}, "2026-11-30T12:00:00Z"), "argument_rule_unreadable")
	}
}

test_one_of_the_listed_values if {
	rule := {"one_of": ["eur", 1, null, true]}
	every value in ["eur", 1, null, true] { fits(rule, value) }
	every value in ["EUR", "eur ", "1", 0, false, ["eur"], {}] { refused(rule, value) }
}

test_number_within_its_bounds if {
	rule := {"at_least": 1, "at_most": 100}
	every value in [1, 1.5, 100] { fits(rule, value) }
	every value in [0, -1, 100.01, 101, 1e300, "50", null, true, [50], {}] { refused(rule, value) }
}

test_each_of_a_list if {
	rule := {"each": true, "within": ["/srv/"]}
	every value in [[], ["/srv/a"], ["/srv/a", "/srv/b"]] { fits(rule, value) }
	every value in ["/srv/a", ["/srv/a", "/etc/passwd"], ["/srv/a", ["/srv/b"]], {"a": "/srv/a"}, null] { refused(rule, value) }
	refused({"within": ["/srv/"]}, ["/srv/a"])
}

test_path_within_its_folder if {
	rule := {"within": ["/srv/public/", "notes/"]}
	every path in [
		"/srv/public/a.txt", "/srv/public/a/b c.txt", "/srv/public/.hidden", "/srv/public/a/", "/srv/public",
		"/srv/public/", "notes/today.md", "/srv/public/a..b",
	] {
		fits(rule, path)
	}
}

test_path_with_a_trick_is_denied if {
	rule := {"within": ["/srv/public/"]}
	every path in [
		"", "/", ".", "..", "/srv", "/srv/publicity/a", "/srv/private/a", "srv/public/a", "/SRV/public/a", " /srv/public/a",
		"/srv/public/..", "/srv/public/../private/a", "/srv/public/a/../../private/b", "/srv/public/./a", "/srv/public//a",
		"//srv/public/a", "/srv//public/a", "/srv/public/.../a", "/srv/public/.. /private", "/srv/public/ ./a",
		"/srv/public/%2e%2e/private", "/srv/public/%2E%2E%2Fprivate", "/srv/public/%252e%252e/a", "/srv/public/..%2fa",
		"/srv/public/..\\private", "/srv/public\\..\\private", "C:/srv/public/a", "file:///srv/public/a", "/srv/public/a:$DATA",
		"/srv/public/a\u0000.txt", "/srv/public/a\n", "/srv/public/\uff0e\uff0e/a", "/srv/public\u2215a", "/srv/public/\u202ea",
		"/srv/public/$HOME", "/srv/public/`id`", "/srv/public/a;b", "/srv/public/*", "/srv/public/a|b",
	] {
		refused(rule, path)
	}
}

test_sql_that_only_reads if {
	rule := {"sql": "read_only"}
	every text in [
		"select 1", "SELECT id, name FROM customers WHERE id = 7", "select count(*) from orders where total > 10.5",
		"with recent as (select * from orders where day >= '2026-11-01') select sum(total) from recent",
		"select c.name, coalesce(max(o.total), 0) from customers c left join orders o on (o.customer = c.id) group by c.name",
		"select * from t where (a = 1 or b in (2, 3)) and exists (select 1 from u) order by a limit 10",
		"\n\tselect lower(name) as \"n\" from t", "select created_at, last_update from t", "select 'it''s' from t",
	] {
		fits(rule, text)
	}
}

test_sql_that_may_write_is_denied if {
	rule := {"sql": "read_only"}
	every text in [
		"", " ", "insert into t values (1)", "update t set a = 1", "DELETE FROM t", "dElEtE from t", "drop table t",
		"select 1; drop table t", "select 1;", "select 1 drop table t", "select 1 -- x", "select 1 /* x */", "select /*!50000 1 */",
		"with gone as (delete from t returning *) select * from gone", "select * into u from t", "select 1 into outfile 'x'",
		"select * from t for update", "select pg_sleep(10)", "select pg_read_file ('/etc/passwd')",
		"select \"pg_sleep\"(10)", "select pg_catalog.pg_terminate_backend(1)", "select lo_import('/etc/passwd')",
		"select nextval('s')", "select load_extension('x')", "select * from dblink('x', 'y')", "select xp_cmdshell('dir')",
		"select 1 exec xp_cmdshell 'dir'", "exec sp_who", "call p()", "explain analyze delete from t", "begin", "set role admin",
		"copy t to program 'id'", "vacuum", "pragma writable_schema = 1", "attach 'x' as y", "select 'a\\'; drop table t",
		"select $$x$$", "select `a` from t", "select U&'\\0061'", "select 1\u00a0;drop table t", "sel\u0435ct 1",
		"select 1 # x", "select @@version", "(select 1)", "values (1)", "table t", 7, null, ["select 1"], {"sql": "select 1"},
	] {
		refused(rule, text)
	}
}

payment(steps) := {
	"effect": "write",
	"approval": {"approvers": ["group:https://idp.example|payers"], "ttl_s": 900, "steps": steps},
}

needed(steps, arguments) := of_tool(payment(steps), arguments, "2026-11-30T12:00:00Z").approval.min_approvers

test_amount_over_a_limit_needs_more_approvers if {
	steps := [{"argument": "/amount", "above": 1000, "min_approvers": 2}, {"argument": "/amount", "above": 50000, "min_approvers": 3}]
	needed(steps, {"amount": 1}) == 1
	needed(steps, {"amount": 1000}) == 1
	needed(steps, {"amount": 1000.01}) == 2
	needed(steps, {"amount": 50000}) == 2
	needed(steps, {"amount": 50001}) == 3
	of_tool(payment(steps), {"amount": 1}, "2026-11-30T12:00:00Z").approval == {
		"approvers": ["group:https://idp.example|payers"], "ttl_s": 900, "min_approvers": 1,
	}
}

test_amount_that_is_no_number_counts_as_above if {
	steps := [{"argument": "/amount", "above": 1000, "min_approvers": 2}]
	every arguments in [{}, null, {"amount": "1"}, {"amount": null}, {"amount": [1]}, {"Amount": 1}] {
		needed(steps, arguments) == 2
	}
}

test_steps_never_lower_what_is_needed if {
	entry := object.union(payment([{"argument": "/amount", "above": 0, "min_approvers": 1}]), {"approval": {"min_approvers": 3}})
	of_tool(entry, {"amount": 5}, "2026-11-30T12:00:00Z").approval.min_approvers == 3
}

test_steps_that_cannot_be_read_deny if {
	every steps in [
		{}, "x", [1], [{}], [{"argument": "/a", "above": 1}], [{"argument": "a", "above": 1, "min_approvers": 2}],
		[{"argument": "/a", "above": "1", "min_approvers": 2}], [{"argument": "/a", "above": 1, "min_approvers": "2"}],
		[{"argument": "/a", "above": 1, "min_approvers": 2, "approvers": []}],
	] {
		denied(of_tool(payment(steps), {"a": 5}, "2026-11-30T12:00:00Z"), "approval_terms_missing")
	}
}

test_grant_is_asked_for_without_arguments_and_judged_with_them if {
	grant := {"schema": {"type": "object"}, "uses": 5, "ttl_s": 600}
	entry := {
		"effect": "write",
		"approval": {"approvers": ["user:x"], "grant": grant, "steps": [{"argument": "/n", "above": 5, "min_approvers": 2}]},
		"arguments": {"/n": {"at_most": 9}},
	}
	asked := object.union(ask("tools/call", "t", {}), {"request": {"grant": {"schema": {}}}})
	alone := {"files": {"tools": {"t": entry}}}
	terms := authz.decision with input as asked with data.mcp.authz.servers as alone
	terms.effect == "approve"
	terms.approval.min_approvers == 2
	used := object.union(asked, {"request": {"arguments": {"n": 10}}})
	under := authz.decision with input as used with data.mcp.authz.servers as alone
	denied(under, "argument_not_allowed")
	denied(of_tool(entry, {}, "2026-11-30T12:00:00Z"), "argument_missing")
}

test_lists_show_what_some_arguments_could_call if {
	entry := {"effect": "read", "arguments": {"/x": {"one_of": [1]}}}
	data_of_one := {"files": {"tools": {"t": entry}}}
	decision := authz.decision with input as list("tools/list", ["t"]) with data.mcp.authz.servers as data_of_one
	decision.visible == ["t"]
}

open_at(windows, at) if of_tool({"effect": "read", "hours": windows}, {}, at).effect == "allow"

shut_at(windows, at) if denied(of_tool({"effect": "read", "hours": windows}, {}, at), "outside_hours")

# 30 November 2026 is a Monday.
test_hours_of_a_working_day if {
	windows := [{"days": ["mon", "tue", "wed", "thu", "fri"], "from": "08:00", "until": "18:00"}]
	every at in ["2026-11-30T08:00:00Z", "2026-11-30T17:59:59Z", "2026-12-04T12:00:00Z"] { open_at(windows, at) }
	every at in ["2026-11-30T07:59:59Z", "2026-11-30T18:00:00Z", "2026-12-05T12:00:00Z", "2026-12-06T12:00:00Z"] { shut_at(windows, at) }
}

test_hours_in_a_named_zone_follow_its_summer_time if {
	windows := [{"from": "08:00", "until": "18:00", "zone": "Europe/Berlin"}]
	open_at(windows, "2026-11-30T07:00:00Z")
	shut_at(windows, "2026-11-30T06:59:00Z")
	open_at(windows, "2026-07-01T06:00:00Z")
	shut_at(windows, "2026-07-01T16:00:00Z")
	open_at([{"days": ["tue"], "zone": "Pacific/Auckland"}], "2026-11-30T12:00:00Z")
}

test_hours_past_midnight_belong_to_the_day_on_which_they_began if {
	windows := [{"days": ["fri"], "from": "22:00", "until": "06:00"}]
	open_at(windows, "2026-12-04T22:00:00Z")
	open_at(windows, "2026-12-05T05:59:00Z")
	shut_at(windows, "2026-12-05T06:00:00Z")
	shut_at(windows, "2026-12-04T05:00:00Z")
	shut_at(windows, "2026-12-05T22:00:00Z")
	open_at([{"days": ["sun"], "from": "22:00", "until": "06:00"}], "2026-11-30T01:00:00Z")
}

test_days_from_the_first_to_the_last if {
	windows := [{"first_day": "2026-12-01", "last_day": "2026-12-31"}]
	every at in ["2026-12-01T00:00:00Z", "2026-12-31T23:59:59Z"] { open_at(windows, at) }
	every at in ["2026-11-30T23:59:59Z", "2027-01-01T00:00:00Z", "2025-12-15T00:00:00Z"] { shut_at(windows, at) }
}

test_any_of_several_windows if {
	windows := [{"from": "08:00", "until": "09:00"}, {"from": "10:00", "until": "11:00"}]
	open_at(windows, "2026-11-30T08:30:00Z")
	open_at(windows, "2026-11-30T10:30:00Z")
	shut_at(windows, "2026-11-30T09:30:00Z")
}

test_window_that_cannot_be_read_is_never_open if {
	every windows in [
		[], {}, "always", false, [{"day": ["mon"]}], [{"days": "mon"}], [{"days": ["monday"]}], [{"days": []}], [1],
		[{"from": "8:00"}], [{"from": "08:60"}], [{"until": "24:01"}], [{"until": "25:00"}], [{"from": "0800"}],
		[{"from": "08:0x"}], [{"from": "12:00", "until": "12:00"}], [{"first_day": "2026/01/01"}], [{"last_day": "31.12.2026"}],
		[{"first_day": "2026-1-1"}], [{"zone": 1}],
	] {
		shut_at(windows, "2026-11-30T12:00:00Z")
	}
}

test_what_is_shut_is_not_listed if {
	data_of_one := {"files": {"tools": {"t": {"effect": "read", "hours": [{"days": ["tue"]}]}}}}
	monday := object.union(list("tools/list", ["t"]), {"now_ns": time.parse_rfc3339_ns("2026-11-30T12:00:00Z")})
	tuesday := object.union(list("tools/list", ["t"]), {"now_ns": time.parse_rfc3339_ns("2026-12-01T12:00:00Z")})
	shut := authz.decision with input as monday with data.mcp.authz.servers as data_of_one
	shut.visible == []
	open := authz.decision with input as tuesday with data.mcp.authz.servers as data_of_one
	open.visible == ["t"]
}

test_hours_of_a_server_are_those_of_all_that_it_offers if {
	question := object.union(ask("tools/call", "t", {}), {"now_ns": time.parse_rfc3339_ns("2026-11-30T12:00:00Z")})
	shut := {"files": {"hours": [{"days": ["tue"]}], "tools": {"t": {"effect": "read"}}}}
	decision := authz.decision with input as question with data.mcp.authz.servers as shut
	denied(decision, "outside_hours")
}

test_budgets_are_told_to_the_gateway if {
	budget := {"count": 20, "window_s": 86400}
	of_tool({"effect": "read", "budgets": {"daily": budget}}, {}, "2026-11-30T12:00:00Z").limits == [{
		"name": "daily", "per": ["server", "subject", "name"], "count": 20, "window_s": 86400,
	}]
	every per, dimensions in {"tenant": ["server", "tenant", "name"], "client": ["server", "client", "name"], "all": ["server", "name"]} {
		entry := {"effect": "read", "budgets": {"b": object.union(budget, {"per": per})}}
		of_tool(entry, {}, "2026-11-30T12:00:00Z").limits[0].per == dimensions
	}
	of_tool({"effect": "read"}, {}, "2026-11-30T12:00:00Z").limits == []
}

test_budget_of_a_server_counts_over_all_its_calls if {
	both := {"files": {
		"budgets": {"all": {"count": 9, "window_s": 60, "per": "all"}},
		"tools": {"t": {"effect": "write", "approval": {"approvers": ["user:x"]}, "budgets": {"own": {"count": 1, "window_s": 60}}}},
		"resources": {"notes://all": {}},
	}}
	told := authz.decision with input as ask("tools/call", "t", {}) with data.mcp.authz.servers as both
	told.effect == "approve"
	[limit.name | some limit in told.limits] == ["all", "own"]
	told.limits[0].per == ["server"]
	note := authz.decision with input as ask("resources/read", "notes://all", {}) with data.mcp.authz.servers as both
	[limit.name | some limit in note.limits] == ["all"]
	pages := authz.decision with input as ask("tools/list", null, {}) with data.mcp.authz.servers as both
	not "limits" in object.keys(pages)
}

test_budget_that_cannot_be_read_denies if {
	every budgets in [
		[], "x", false, {"b": 1}, {"b": {}}, {"b": {"count": 1}}, {"b": {"count": "1", "window_s": 60}},
		{"b": {"count": 1, "window_s": 60, "per": "tool"}}, {"b": {"count": 1, "window_s": 60, "windows": 1}},
	] {
		denied(of_tool({"effect": "read", "budgets": budgets}, {}, "2026-11-30T12:00:00Z"), "budget_unreadable")
	}
}

test_what_nothing_would_count_or_judge_is_unknown if {
	every entry in [{"arguments": {"/x": {}}}, {"budgets": {"b": {"count": 1, "window_s": 1}}}] {
		one := {"files": {"resources": {"notes://all": entry}, "methods": {"x/y": entry}}}
		read_one := authz.decision with input as ask("resources/read", "notes://all", {}) with data.mcp.authz.servers as one
		denied(read_one, "data_member_unknown")
		other := authz.decision with input as ask("x/y", null, {}) with data.mcp.authz.servers as one
		denied(other, "data_member_unknown")
	}
}

# ------------------------------------------------------------------ what holds for any arguments

steady(entry) if of_tool(entry, {}, "2026-11-30T12:00:00Z").any_arguments == true

unsteady(entry, given) if {
	decision := of_tool(entry, given, "2026-11-30T12:00:00Z")
	decision.effect == "allow"
	decision.any_arguments == false
}

arguments_of_all_kinds := [null, {}, [], "x", {"x": 1}, {"x": "/a/../b", "n": 1e300}, {"ref": {"type": "ref/prompt"}}]

test_allow_without_conditions_holds_for_any_arguments if {
	every entry in [
		{"effect": "read"}, {"effect": "write", "approval": {"needed": false}}, {"effect": "read", "scopes": ["s"]},
		{"effect": "read", "clear": ["/x"], "mask": ["/y"], "disclose": true, "description": "d"},
		{"effect": "read", "tenants": [""]}, {"effect": "read", "environments": ["production"]},
	] {
		steady(entry)
		told := {of_tool(entry, given, at) |
			some given in arguments_of_all_kinds
			some at in ["2026-11-30T12:00:00Z", "2026-12-06T00:00:00Z", "1970-01-01T00:00:00Z"]
		}
		count(told) == 1
	}
}

test_conditions_on_arguments_hours_and_counts_hold_for_these_alone if {
	unsteady({"effect": "read", "arguments": {"/x": {"optional": true}}}, {})
	unsteady({"effect": "read", "arguments": {}}, {})
	unsteady({"effect": "read", "hours": [{}]}, {})
	unsteady({"effect": "read", "budgets": {"b": {"count": 1, "window_s": 1}}}, {})
	every more in [{"hours": [{}]}, {"budgets": {"b": {"count": 1, "window_s": 1}}}] {
		one := {"files": object.union({"tools": {"t": {"effect": "read"}}}, more)}
		told := authz.decision with input as ask("tools/call", "t", {}) with data.mcp.authz.servers as one
		told.effect == "allow"
		told.any_arguments == false
	}
}

test_only_an_allow_that_nobody_approved_holds_for_any_arguments if {
	every entry in [{"effect": "write"}, false, {"effect": "write", "approval": {"approvers": ["user:x"]}}] {
		not "any_arguments" in object.keys(of_tool(entry, {}, "2026-11-30T12:00:00Z"))
	}
	leg := object.union(ask("tools/call", "t", {}), {"request": {"leg": 1, "approved": true}})
	gated := {"files": {"tools": {"t": {"effect": "write", "approval": {"approvers": ["user:x"]}}}}}
	told := authz.decision with input as leg with data.mcp.authz.servers as gated
	told.effect == "allow"
	not "any_arguments" in object.keys(told)
}

test_what_names_its_targets_in_its_arguments_holds_for_these_alone if {
	every question in [
		ask("completion/complete", null, {"ref": {"type": "ref/prompt", "name": "greet"}}),
		ask("subscriptions/listen", null, {"notifications": {"resourceSubscriptions": ["notes://all"]}}),
		about("tasks/get", ["read_file"]),
	] {
		told := decide(question)
		told.effect == "allow"
		told.any_arguments == false
	}
	every method in ["tools/list", "resources/list", "server/discover"] {
		decide(ask(method, null, {"cursor": "x"})).any_arguments == true
	}
}

page_of(tools, ids) := decision if {
	one := {"files": {"tools": tools}}
	question := list("tools/list", ids)
	decision := authz.decision with input as question with data.mcp.authz.servers as one
}

# A page shows what its hours show now, and another time something else; also what is shut at present.
test_page_holds_for_any_time_unless_something_on_it_has_hours if {
	tools := {
		"a": {"effect": "read"},
		"ruled": {"effect": "read", "arguments": {"/x": {}}, "budgets": {"b": {"count": 1, "window_s": 1}}},
		"shut": {"effect": "read", "hours": [{"last_day": "1970-01-01"}]},
		"closed": false,
	}
	every ids in [["a", "ruled", "closed", "absent"], []] { page_of(tools, ids).any_arguments == true }
	page_of(tools, ["a", "shut"]).any_arguments == false

}
