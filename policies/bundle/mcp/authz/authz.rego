# What a caller may do, decided from data.json alone: what is not listed there is denied.
# docs/policy.md explains every member of the data and every reason, for readers who have never seen Rego.
#
# This runs for every request: what is needed twice is a rule (evaluated once), and no regular expressions (compiled
# anew each time by the embedded engine).
package mcp.authz

import rego.v1

# The one rule that the gateway asks for. At most one of its forms holds for any input.
default decision := {"effect": "deny", "scopes": [], "reasons": ["not_decided"], "disclose": false}

# No scopes with a denial: asking for them would tell a hidden tool from an absent one.
decision := {
	"effect": "deny",
	"scopes": [],
	"reasons": [refusal],
	"disclose": object.get(known, "disclose", false),
	"clear": object.get(known, "clear", []),
	"mask": object.get(known, "mask", []),
} if {
	refusal
}

decision := {
	"effect": "allow",
	"scopes": array.concat(object.get(server, "scopes", []), object.get(entry, "scopes", [])),
	"reasons": ["allowed"],
	"clear": object.get(entry, "clear", []),
	"mask": object.get(entry, "mask", []),
	"limits": limits,
	"any_arguments": any_arguments,
} if {
	not refusal
	gate == "open"
}

# The answers to what a server asks in an approved call belong to it, unless the data wants them approved as well.
decision := {
	"effect": "allow",
	"scopes": array.concat(object.get(server, "scopes", []), object.get(entry, "scopes", [])),
	"reasons": ["approved_call_continued"],
	"clear": object.get(entry, "clear", []),
	"mask": object.get(entry, "mask", []),
	"limits": limits,
} if {
	not refusal
	gate == "approve"
	covered
}

decision := {
	"effect": "approve",
	"scopes": array.concat(object.get(server, "scopes", []), object.get(entry, "scopes", [])),
	"reasons": ["approval_needed"],
	"approval": terms,
	"clear": object.get(entry, "clear", []),
	"mask": object.get(entry, "mask", []),
	"limits": limits,
} if {
	not refusal
	gate == "approve"
	not covered
}

# A grant (the same tool, arguments within a schema) is possible only where the data says so for the tool itself. What is
# asked for has no say in how often, how long, and within which bounds.
terms := own_terms if not granting

terms := object.union(
	own_terms,
	object.union(object.remove(entry.approval.grant, ["schema"]), {"grant": {"schema": entry.approval.grant.schema}}),
) if granting

own_terms := object.remove(entry.approval, ["needed", "answers", "grant"]) if not "steps" in object.keys(entry.approval)

own_terms := object.union(
	object.remove(entry.approval, ["needed", "answers", "grant", "steps"]),
	{"min_approvers": approvers_needed},
) if "steps" in object.keys(entry.approval)

granting if {
	is_object(input.request.grant)
	is_object(entry.approval.grant)
}

# A request that names no single thing of the data: lists, descriptions, completions, subscriptions, tasks, others.
decision := {
	"effect": "allow",
	"scopes": array.concat(object.get(server, "scopes", []), entries_scopes),
	"reasons": ["allowed"],
	"visible": visible,
	"any_arguments": any_arguments,
} if {
	not section
	not refusal
}

# Whether an allow is the same for any arguments, at any time, so that the gateway may remember it: where the data has
# no member that judges arguments, hours or counts.
default any_arguments := false

any_arguments if {
	section
	lasting(server, server_members)
	lasting(known, entry_members)
}

# Completions and subscriptions name their targets in their arguments; tasks come and go.
any_arguments if {
	not section
	method != "completion/complete"
	method != "subscriptions/listen"
	not startswith(method, "tasks/")
	lasting(server, server_members)
	every pair in entries { lasting(pair[1], entry_members) }
	every candidate in object.get(input, "candidates", []) { not passing(find_shown(candidate.id)) }
}

lasting(one, members) if count((object.keys(one) - members) - {"environments", "tenants"}) == 0

# What is listed at one time and not at another. Lists judge neither arguments nor counts; what is closed stays so.
passing(one) if {
	is_object(one)
	not lasting(one, entry_members | {"arguments", "budgets"})
}

find_shown(id) := one if {
	one := shown(listed_by[method], id)
} else := null

# ------------------------------------------------------------------ what is asked for

server := found if {
	found := data.mcp.authz.servers[input.server.name]
	is_object(found)
}

method := input.request.method

# The section of a server's data that a method reaches into with one name.
section := "tools" if method == "tools/call"

section := "prompts" if method == "prompts/get"

section := "resources" if method == "resources/read"

# Its data. `null`: nothing is listed under the name; `false` in the data closes it in so many words.
default entry := null

entry := find(section, input.request.name)

default known := {}

known := entry if is_object(entry)

gate := gate_of(section, entry) if is_object(entry)

listed_by := {
	"tools/list": "tools",
	"prompts/list": "prompts",
	"resources/list": "resources",
	"resources/templates/list": "resources",
}

# All that a request without a single name reaches, as [section, id]. All of it must be listed.
targets contains ["methods", method]

targets contains ["prompts", input.request.arguments.ref.name] if {
	method == "completion/complete"
	input.request.arguments.ref.type == "ref/prompt"
}

targets contains [kind, uri] if {
	method == "completion/complete"
	input.request.arguments.ref.type == "ref/resource"
	uri := input.request.arguments.ref.uri
	kind := kind_of(uri)
}

targets contains ["resources", uri] if {
	method == "subscriptions/listen"
	uris := input.request.arguments.notifications.resourceSubscriptions
	is_array(uris)
	some uri in uris
}

# A task is as callable as the tool that made it. What is no task of this caller's (`tool` is null) reaches nothing: the
# gateway itself answers it, like every id that was never given out.
targets contains ["tools", task.tool] if {
	not section
	some task in input.request.tasks
	task.tool != null
}

# The data of each of them, as [section, data].
entries := [[pair[0], one] |
	some pair in targets
	one := find(pair[0], pair[1])
	is_object(one)
]

entries_scopes := [scope |
	some pair in entries
	some scope in object.get(pair[1], "scopes", [])
]

# ------------------------------------------------------------------ what stands against it

# The first thing that stands against the request, in this order; undefined when nothing does.
refusal := "phase_unknown" if {
	not phase_known
} else := "server_not_listed" if {
	not server
} else := reason if {
	reason := server_fault
} else := reason if {
	is_object(entry)
	reason := fault(section, entry)
} else := "approval_terms_missing" if {
	gate == "unstated"
} else := reason if {
	section
	not is_object(entry)
	reason := absence(section, input.request.name)
} else := reason if {
	is_object(entry)
	reason := argument_fault
} else := reason if {
	not section
	reason := refusal_of_several
}

refusal_of_several := "target_missing" if {
	not all_named
} else := reason if {
	found := [why | some pair in targets; why := refusal_of(pair[0], pair[1], find_or_null(pair[0], pair[1]))]
	reason := min(found)
} else := "approval_not_possible" if {
	some pair in entries
	gate_of(pair[0], pair[1]) != "open"
	not settled(pair[0])
}

# The call that made a task had its approval. New input for it was seen by nobody who approved: that it needs no
# approval must be said in so many words.
settled("tools") if method != "tasks/update"

settled("tools") if server.methods["tasks/update"].approval.needed == false

# Of a held call nothing has gone anywhere yet: what it is given is judged as a leg of the call itself when it runs.
settled("tools") if {
	some task in input.request.tasks
	task.held == true
}

refusal_of(place, id, found) := reason if {
	is_object(found)
	reason := fault(place, found)
} else := "approval_terms_missing" if {
	is_object(found)
	gate_of(place, found) == "unstated"
} else := reason if {
	not is_object(found)
	reason := absence(place, id)
}

absence("tools", _) := "tool_not_listed"

absence("prompts", _) := "prompt_not_listed"

absence("templates", _) := "resource_not_listed"

absence("methods", _) := "method_not_listed"

absence("resources", id) := "resource_uri_not_normal" if {
	not named("resources", id)
	not normal(id)
} else := "resource_not_listed"

# What makes this caller a stranger to an entry. A misspelt member must never silently mean "no such rule"; a member
# of a wrong type makes the decision malformed, or this denial.
fault(place, one) := reason if {
	unusual := object.keys(one) - entry_members
	count(unusual) > 0
	reason := condition_fault(unusual, object.get(entry_conditions, place, plain_conditions), one)
}

server_fault := reason if {
	unusual := object.keys(server) - server_members
	count(unusual) > 0
	reason := condition_fault(unusual, server_conditions, server)
}

# Most data has none of these members, and is done with before it comes here.
condition_fault(unusual, known_here, one) := "data_member_unknown" if {
	count(unusual - known_here) > 0
} else := "environment_not_listed" if {
	environments := one.environments
	not input.server.environment in environments
} else := "tenant_not_listed" if {
	tenants := one.tenants
	not input.subject.tenant in tenants
} else := "outside_hours" if {
	hours := one.hours
	not within_hours(hours)
} else := "budget_unreadable" if {
	budgets := one.budgets
	not budgets_readable(budgets)
}

entry_members := {"description", "effect", "scopes", "approval", "clear", "mask", "disclose"}

server_members := {"description", "scopes", "tools", "prompts", "resources", "methods"}

plain_conditions := {"environments", "tenants", "hours"}

# Elsewhere nothing would judge arguments, nor count.
entry_conditions := {"tools": called_conditions, "prompts": called_conditions}

called_conditions := {"environments", "tenants", "hours", "arguments", "budgets"}

server_conditions := {"environments", "tenants", "hours", "budgets"}

# ------------------------------------------------------------------ how often

# What the gateway counts before a call goes on: a server's budgets over all calls, an entry's over its own.
default limits := []

limits := array.concat(limits_of(server, []), limits_of(known, ["name"])) if budgeted

budgeted if server.budgets != null

budgeted if entry.budgets != null

limits_of(one, _) := [] if not "budgets" in object.keys(one)

limits_of(one, more) := found if {
	"budgets" in object.keys(one)
	budgets_readable(one.budgets)
	found := [limit |
		some name, budget in one.budgets
		whose := counted_per[object.get(budget, "per", "subject")]
		per := array.concat(["server"], array.concat(whose, more))
		limit := {"name": name, "per": per, "count": budget.count, "window_s": budget.window_s}
	]
}

counted_per := {"subject": ["subject"], "client": ["client"], "tenant": ["tenant"], "all": []}

budgets_readable(budgets) if {
	is_object(budgets)
	every budget in budgets {
		is_object(budget)
		count(object.keys(budget) - {"description", "count", "window_s", "per"}) == 0
		is_number(budget.count)
		is_number(budget.window_s)
		object.get(budget, "per", "subject") in object.keys(counted_per)
	}
}

phase_known if input.phase == "call"

phase_known if input.phase == "list"

# A completion names what it completes, a subscription names resources by URI and tasks by id.
all_named if {
	method != "completion/complete"
	method != "subscriptions/listen"
	not startswith(method, "tasks/")
}

all_named if {
	startswith(method, "tasks/")
	count(input.request.tasks) == 1
}

all_named if {
	method == "completion/complete"
	count(targets) == 2
}

all_named if {
	method == "subscriptions/listen"
	uris := object.get(input.request.arguments.notifications, "resourceSubscriptions", [])
	is_array(uris)
	every uri in uris { is_string(uri) }
	ids := object.get(input.request.arguments.notifications, "taskIds", [])
	ids == [task.id | some task in object.get(input.request, "tasks", [])]
}

# ------------------------------------------------------------------ how data is found

# Names are compared byte by byte: no case folding, no Unicode normalisation, no pattern.
find("tools", id) := server.tools[id]

find("prompts", id) := server.prompts[id]

find("methods", id) := server.methods[id]

# Whether the data says anything under exactly this name, be it `false`.
named(place, id) if {
	value := server[place][id]
	type_name(value) != ""
}

# Naming a section opens its lists and the server's description; what they show is judged entry by entry. Tools that are
# called may make tasks, so naming tools opens those as well.
find("methods", id) := {} if {
	not named("methods", id)
	opened(id)
}

opened(id) if id == "server/discover"

opened(id) if listed_by[id] in object.keys(server)

opened(id) if {
	id in {"tasks/get", "tasks/update", "tasks/cancel"}
	"tools" in object.keys(server)
}

# A key that ends with `/` covers what lies below it, any other exactly itself.
find("resources", uri) := server.resources[uri]

find("resources", uri) := below(uri) if {
	not named("resources", uri)
	normal(uri)
}

# A template: what stands before its first variable must lie below a key.
find("templates", id) := below(literal) if {
	literal := split(id, "{")[0]
	normal(literal)
}

kind_of(uri) := "templates" if contains(uri, "{")

kind_of(uri) := "resources" if not contains(uri, "{")

# The longest key that covers the URI decides, so that a part of what is open can be closed.
below(uri) := server.resources[key] if {
	covering := [[count(name), name] |
		some name, _ in server.resources
		endswith(name, "/")
		startswith(uri, name)
		not startswith(trim_prefix(uri, name), "/")
	]
	key := max(covering)[1]
}

find_or_null(place, id) := one if {
	one := find(place, id)
} else := null

# Below a key only a URI with one reading may be asked for: whatever a server might decode, resolve or collapse
# (encoded letters, dots, slashes; dot segments; empty segments) could lead to another place than the one judged.
normal(uri) if {
	trim_left(uri, plain) == ""
	pieces := split(uri, "%")
	every piece in array.slice(pieces, 1, count(pieces)) { escape(piece) }
	every part in split(strings.replace_n({"?": "/", "#": "/", ";": "/"}, uri), "/") { not dots(part) }
	rest := split(uri, "://")
	count(rest) < 3
	not contains(rest[count(rest) - 1], "//")
}

plain := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:/?#[]@!$&'()*+,;=%"

# What may follow a `%`: no letter, digit, dot, hyphen, underscore, tilde, slash, backslash, percent or control
# character in disguise, no lower-case hexadecimal, no overlong UTF-8.
second_digits := {
	"2": "012346789ABC",
	"3": "ACDEF",
	"4": "0",
	"5": "BDE",
	"6": "0",
	"7": "BCD",
	"8": "0123456789ABCDEF",
	"9": "0123456789ABCDEF",
	"A": "0123456789ABCDEF",
	"B": "0123456789ABCDEF",
	"C": "23456789ABCDEF",
	"D": "0123456789ABCDEF",
	"E": "0123456789ABCDEF",
	"F": "0123456789ABCDEF",
}

escape(piece) if {
	count(piece) > 1
	contains(second_digits[substring(piece, 0, 1)], substring(piece, 1, 1))
}

dots(part) if {
	part != ""
	trim(part, ".") == ""
}

# ------------------------------------------------------------------ whether a person must say yes

# "open", "approve" or "unstated". A tool that doesn't say that it only reads changes something, and a change
# must say whether a person approves it.
gate_of(place, one) := "open" if {
	reads(place, one)
	object.get(one, "approval", null) == null
} else := "open" if {
	effect_known(one)
	one.approval.needed == false
} else := "approve" if {
	effect_known(one)
	is_object(one.approval)
	object.get(one.approval, "needed", true) == true
	object.get(one.approval, "answers", "covered") in ["covered", "again"]
	count(one.approval.approvers) > 0
	grant_stated(one.approval)
	steps_stated(one.approval)
} else := "unstated"

grant_stated(approval) if object.get(approval, "grant", null) == null

grant_stated(approval) if {
	is_object(approval.grant.schema)
	is_number(approval.grant.uses)
	is_number(approval.grant.ttl_s)
	count(object.keys(approval.grant) - {"schema", "uses", "ttl_s"}) == 0
}

# Whether the request goes on with a call that a person approved (the gateway's own seal says so), and that approval
# covers the answers.
covered if {
	input.request.approved == true
	object.get(entry.approval, "answers", "covered") == "covered"
}

reads("tools", one) if one.effect == "read"

reads(place, one) if {
	place != "tools"
	object.get(one, "effect", "read") == "read"
}

effect_known(one) if object.get(one, "effect", "write") in ["read", "write"]

# ------------------------------------------------------------------ lists

# Listed is what a call would not be denied, scopes and approval taken as obtainable.
visible := [candidate.id |
	input.phase == "list"
	some candidate in input.candidates
	place := listed_by[method]
	one := shown(place, candidate.id)
	is_object(one)
	not refusal_of(place, candidate.id, one)
]

shown(place, id) := find(place, id) if method != "resources/templates/list"

shown(_, id) := find("templates", id) if method == "resources/templates/list"

# ------------------------------------------------------------------ what a call may say

# What the arguments of a call may be, by the member `arguments` of a tool's or prompt's data (docs/policy.md,
# "Arguments"). Each key is a JSON pointer to one argument. What can't be read as a rule denies.

# The first thing that stands against the arguments; undefined when nothing does. A grant is asked for without any: of
# a call that runs under it they are judged like those of every other call.
argument_fault := min(found) if {
	rules := entry.arguments
	not asks_for_grant
	found := argument_faults(rules)
	count(found) > 0
}

asks_for_grant if {
	granting
	object.get(input.request, "arguments", null) in [null, {}]
}

argument_faults(rules) := {"argument_rule_unreadable"} if {
	not is_object(rules)
} else := found if {
	found := {why | some pointer, rule in rules; why := argument_wrong(pointer, rule)}
}

argument_wrong(pointer, rule) := "argument_rule_unreadable" if {
	not readable_rule(pointer, rule)
} else := "argument_missing" if {
	not given(pointer)
	object.get(rule, "optional", false) == false
} else := "argument_not_allowed" if {
	given(pointer)
	not holds(rule, value_at(pointer, null))
}

argument_rule_members := {"description", "optional", "each", "one_of", "within", "sql", "at_least", "at_most"}

readable_rule(pointer, rule) if {
	startswith(pointer, "/")
	is_object(rule)
	count(object.keys(rule) - argument_rule_members) == 0
	is_boolean(object.get(rule, "optional", false))
	is_boolean(object.get(rule, "each", false))
	is_array(object.get(rule, "one_of", []))
	is_array(object.get(rule, "within", []))
	every prefix in object.get(rule, "within", []) { is_string(prefix) }
	object.get(rule, "sql", "read_only") == "read_only"
	is_number(object.get(rule, "at_least", 0))
	is_number(object.get(rule, "at_most", 0))
}

# A pointer leads through objects only. What is not there takes on whatever default it is given, and nothing else does.
given(pointer) if value_at(pointer, 0) == value_at(pointer, 1)

value_at(pointer, default_value) := object.get(input.request.arguments, steps_of(pointer), default_value) if {
	is_object(input.request.arguments)
} else := default_value

steps_of(pointer) := [replace(replace(step, "~1", "/"), "~0", "~") |
	some step in array.slice(split(pointer, "/"), 1, count(split(pointer, "/")))
]

holds(rule, value) if {
	object.get(rule, "each", false) == false
	fits(rule, value)
}

holds(rule, value) if {
	object.get(rule, "each", false) == true
	is_array(value)
	every one in value { fits(rule, one) }
}

fits(rule, value) if {
	fits_one_of(rule, value)
	fits_within(rule, value)
	fits_sql(rule, value)
	fits_least(rule, value)
	fits_most(rule, value)
}

fits_one_of(rule, _) if not "one_of" in object.keys(rule)

fits_one_of(rule, value) if value in rule.one_of

fits_least(rule, _) if not "at_least" in object.keys(rule)

fits_least(rule, value) if {
	is_number(value)
	value >= rule.at_least
}

fits_most(rule, _) if not "at_most" in object.keys(rule)

fits_most(rule, value) if {
	is_number(value)
	value <= rule.at_most
}

# ------------------------------------------------------------------ paths

fits_within(rule, _) if not "within" in object.keys(rule)

fits_within(rule, value) if {
	is_string(value)
	plain_path(value)
	some prefix in rule.within
	lies_within(value, prefix)
}

lies_within(path, prefix) if {
	endswith(prefix, "/")
	startswith(path, prefix)
}

# The folder itself.
lies_within(path, prefix) if concat("", [path, "/"]) == prefix

# A path with one reading, whatever decodes, resolves or cleans it: no percent sign, no backslash, nothing outside
# ASCII, no empty segment, and none that is only dots and blanks.
plain_path(path) if {
	path != ""
	trim_left(path, path_characters) == ""
	segments := split(trim_suffix(trim_prefix(path, "/"), "/"), "/")
	every segment in segments { trim(segment, ". ") != "" }
}

path_characters := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/ @+=,()"

# ------------------------------------------------------------------ SQL

fits_sql(rule, _) if not "sql" in object.keys(rule)

fits_sql(rule, value) if {
	rule.sql == "read_only"
	is_string(value)
	reads_only(value)
}

# A net, not a wall: the server's database user must not be able to write either. The text is not parsed, so nothing
# hinges on where a dialect ends a literal: every word counts, wherever it stands, and what is not known is refused.
reads_only(text) if {
	trim_left(text, sql_characters) == ""
	not contains(text, "--")
	not contains(text, "/*")
	spaced := strings.replace_n(sql_blanks, lower(text))
	words := [word | some word in split(spaced, " "); word != ""]
	words[0] in {"select", "with"}
	every word in words { not word in sql_refused }
	every word in words { not startswith(word, "xp_") }
	every word in words { not startswith(word, "sp_") }
	every place, word in words { known_call(words, place, word) }
}

# Letters, digits, blanks and what expressions are made of: no semicolon, backslash, dollar, hash, backtick, at sign.
sql_characters := concat("", [
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_",
	" \t\r\n.,()*+-/%<>=!|&^~?:'\"[]{}",
])

sql_blanks := {
	"\t": " ", "\r": " ", "\n": " ", ".": " ", ",": " , ", "(": " ( ", ")": " ) ", "*": " * ", "+": " + ", "-": " - ",
	"/": " / ", "%": " % ", "<": " < ", ">": " > ", "=": " = ", "!": " ! ", "|": " | ", "&": " & ", "^": " ^ ",
	"~": " ~ ", "?": " ? ", ":": " : ", "'": " ", "\"": " ", "[": " ", "]": " ", "{": " ", "}": " ",
}

sql_refused := {
	"insert", "update", "delete", "merge", "replace", "upsert", "into", "create", "alter", "drop", "truncate", "rename",
	"comment", "grant", "revoke", "deny", "call", "exec", "execute", "perform", "do", "declare", "begin", "commit",
	"rollback", "savepoint", "abort", "start", "prepare", "deallocate", "set", "reset", "copy", "load", "import",
	"export", "bulk", "unload", "put", "attach", "detach", "pragma", "vacuum", "analyze", "analyse", "reindex",
	"cluster", "refresh", "lock", "unlock", "for", "listen", "notify", "unlisten", "discard", "checkpoint", "shutdown",
	"kill", "use", "backup", "restore", "dbcc", "waitfor", "print", "raiserror", "throw", "goto", "if", "while",
	"handler", "install", "uninstall", "flush", "purge", "optimize", "repair", "outfile", "dumpfile", "procedure",
	"function", "trigger", "writetext", "updatetext", "readtext", "reconfigure", "revert", "setuser", "security",
	"reassign", "owned", "openrowset", "openquery", "opendatasource", "returning", "output", "pivot_longer",
}

# Before a parenthesis stands an operator, a word that a parenthesis may follow, or a function that only computes.
known_call(_, _, word) if word != "("

known_call(words, place, "(") if words[place - 1] in sql_before_parenthesis

sql_before_parenthesis := {
	"(", ",", "*", "+", "-", "/", "%", "<", ">", "=", "|", "&", "^", "~", ":",
	"select", "distinct", "from", "join", "where", "and", "or", "not", "in", "exists", "any", "all", "some", "on",
	"using", "as", "by", "having", "over", "when", "then", "else", "case", "between", "like", "union", "except",
	"intersect", "values", "limit", "offset", "filter", "materialized",
	"count", "sum", "avg", "min", "max", "coalesce", "nullif", "greatest", "least", "abs", "round", "floor", "ceil",
	"ceiling", "mod", "power", "sqrt", "sign", "lower", "upper", "length", "trim", "ltrim", "rtrim", "substr",
	"substring", "position", "concat", "left", "right", "cast", "date", "extract", "date_trunc", "date_part", "year",
	"month", "day", "row_number", "rank", "dense_rank", "ntile", "lag", "lead", "first_value", "last_value",
	"string_agg", "group_concat", "array_agg", "stddev", "variance", "numeric", "decimal", "varchar", "char",
}

# ------------------------------------------------------------------ amounts

# An approval's `steps`: above a limit more people must approve. What can't be read as a number counts as above it.
approvers_needed := max([own | some own in array.concat([object.get(entry.approval, "min_approvers", 1)], raised)])

raised := [step.min_approvers |
	is_array(entry.approval.steps)
	some step in entry.approval.steps
	step_stated(step)
	not stays_below(step)
]

stays_below(step) if {
	amount := value_at(step.argument, null)
	is_number(amount)
	amount <= step.above
}

steps_stated(approval) if not "steps" in object.keys(approval)

steps_stated(approval) if {
	is_array(approval.steps)
	is_number(object.get(approval, "min_approvers", 1))
	every step in approval.steps { step_stated(step) }
}

step_stated(step) if {
	is_object(step)
	count(object.keys(step) - {"argument", "above", "min_approvers"}) == 0
	is_string(step.argument)
	startswith(step.argument, "/")
	is_number(step.above)
	is_number(step.min_approvers)
}

# ------------------------------------------------------------------ when

# When something is open, by the member `hours` of a server's or entry's data (docs/policy.md, "Hours"): a list of
# windows, one of which must be open. A window that can't be read is never open.

# The engine's clock, but for questions that bring a time of their own: replays and tests. The gateway's bring none.
now_ns := object.get(input, "now_ns", null) if "now_ns" in object.keys(input)

now_ns := time.now_ns() if not "now_ns" in object.keys(input)

within_hours(windows) if {
	is_array(windows)
	some window in windows
	readable_window(window)
	zone := object.get(window, "zone", "UTC")
	date_fits(window, zone)
	time_fits(window, zone)
}

window_members := {"description", "days", "from", "until", "first_day", "last_day", "zone"}

readable_window(window) if {
	is_object(window)
	count(object.keys(window) - window_members) == 0
	is_array(object.get(window, "days", []))
	every day in object.get(window, "days", []) { day in week }
	is_string(object.get(window, "zone", "UTC"))
}

week := ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]

# The first and the last day are part of the window.
date_fits(window, zone) if {
	date := time.date([now_ns, zone])
	today := ((date[0] * 10000) + (date[1] * 100)) + date[2]
	day_number(object.get(window, "first_day", "0001-01-01")) <= today
	today <= day_number(object.get(window, "last_day", "9999-12-31"))
}

# The minute of `until` is not part of the window any more. One that ends before it begins goes on past midnight, and
# belongs to the day on which it began.
time_fits(window, zone) if {
	span := span_of(window)
	span[0] < span[1]
	minute := minute_of_day(zone)
	span[0] <= minute
	minute < span[1]
	day_fits(window, zone, 0)
}

time_fits(window, zone) if {
	span := span_of(window)
	span[0] > span[1]
	span[0] <= minute_of_day(zone)
	day_fits(window, zone, 0)
}

time_fits(window, zone) if {
	span := span_of(window)
	span[0] > span[1]
	minute_of_day(zone) < span[1]
	day_fits(window, zone, 1)
}

span_of(window) := [minutes_of(object.get(window, "from", "00:00")), minutes_of(object.get(window, "until", "24:00"))]

minute_of_day(zone) := (clock[0] * 60) + clock[1] if clock := time.clock([now_ns, zone])

day_fits(window, _, _) if not "days" in object.keys(window)

day_fits(window, zone, ago) if {
	some place, name in ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
	name == time.weekday([now_ns, zone])
	week[((place + 7) - ago) % 7] in window.days
}

# "HH:MM", 00:00 to 24:00 -> minutes.
minutes_of(text) := minutes if {
	count(text) == 5
	substring(text, 2, 1) == ":"
	minute := number_of(substring(text, 3, 2))
	minute < 60
	minutes := (number_of(substring(text, 0, 2)) * 60) + minute
	minutes <= 1440
}

# "YYYY-MM-DD" -> a number of the same order.
day_number(text) := ((number_of(substring(text, 0, 4)) * 10000) + (number_of(substring(text, 5, 2)) * 100)) + number_of(substring(text, 8, 2)) if {
	count(text) == 10
	substring(text, 4, 1) == "-"
	substring(text, 7, 1) == "-"
}

number_of(digits) := number if {
	values := [digit_values[digit] | some digit in split(digits, "")]
	count(values) == count(digits)
	places := array.slice([1000, 100, 10, 1], 4 - count(values), 4)
	worths := [worth |
		some place, value in values
		worth := value * places[place]
	]
	number := sum(worths)
}

digit_values := {"0": 0, "1": 1, "2": 2, "3": 3, "4": 4, "5": 5, "6": 6, "7": 7, "8": 8, "9": 9}
