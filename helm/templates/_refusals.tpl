{{/* A line for each mistake; (dict "root" $ "config" the settings with their defaults). refusals.yaml tells them. */}}

{{- define "ostiary.isLoopback" -}}
{{- $host := (urlParse .).hostname -}}
{{- if or (eq $host "localhost") (hasPrefix "127." $host) (eq $host "::1") }}yes{{ end -}}
{{- end -}}

{{- define "ostiary.refuse.settings" -}}
{{- $config := .config -}}
{{- if and (hasPrefix "http:" $config.public_url) (not (include "ostiary.isLoopback" $config.public_url)) }}
config.public_url: must be https:// (plain http:// is accepted on loopback only)
{{- end }}
{{- if and $config.listen.tls (not (hasPrefix "https:" $config.public_url)) }}
config.listen.tls: public_url must be https:// then, for that is where clients will come
{{- end }}
{{- if not (has (urlParse $config.public_url).path (list "" "/")) }}
config.public_url: must have no path
{{- end }}
{{- if eq (int $config.listen.port) (int $config.admin.port) }}{{/* whatever the hosts: a pod has one address */}}
config.admin.port: is that of listen already
{{- end }}
{{- range $group, $port := dict "listen" $config.listen.port "admin" $config.admin.port }}
{{- if not (int $port) }}
config.{{ $group }}.port: 0 lets the system choose, and nothing would find it
{{- else if lt (int $port) 1024 }}
config.{{ $group }}.port: {{ int $port }} is for root alone, and nothing in the pod is: 1024 or more (what clients see is service.port)
{{- end }}
{{- if and $.root.Values.opa.sidecar (has (int $port) (list 8181 8282)) }}
config.{{ $group }}.port: {{ int $port }} is the sidecar's, and a pod has one address
{{- end }}
{{- end }}
{{- range $group := list "listen" "admin" }}
{{- if not (has (get $config $group).host (list "0.0.0.0" "::" "[::]")) }}
config.{{ $group }}.host: {{ (get $config $group).host }} can't be reached from outside the pod: 0.0.0.0 or ::
{{- end }}
{{- end }}
{{- $known := list }}
{{- range $config.identity.issuers }}
{{- if has .issuer $known }}
config.identity: an issuer is configured twice
{{- end }}
{{- $known = append $known .issuer }}
{{- if contains "|" .issuer }}
config.identity.issuers: issuer must hold no |: approvers and records write ISSUER|SUBJECT
{{- end }}
{{- if and (hasPrefix "http:" .issuer) (not (include "ostiary.isLoopback" .issuer)) }}
config.identity.issuers: {{ .issuer }}: must be https:// (plain http:// is accepted on loopback only)
{{- end }}
{{- if and .jwks_uri .jwks_file }}
config.identity.issuers: jwks_uri and jwks_file exclude each other
{{- end }}
{{- end }}
{{- range $setting, $url := dict
  "audit.checkpoints.webhook" (dig "checkpoints" "webhook" "" (omit $config.audit (kindIs "map" $config.audit.checkpoints | ternary "" "checkpoints")))
  "audit.otlp.endpoint" (dig "otlp" "endpoint" "" $config.audit)
  "registry.url" (dig "registry" "url" "" $config)
  "telemetry.traces.endpoint" (dig "telemetry" "traces" "endpoint" "" $config) }}
{{- if and (hasPrefix "http:" (default "" $url)) (not (include "ostiary.isLoopback" $url)) }}
config.{{ $setting }}: must be https:// (plain http:// is accepted on loopback only)
{{- end }}
{{- end }}
{{- range $config.identity.issuers }}
{{- if and (hasPrefix "http:" (default "" .jwks_uri)) (not (include "ostiary.isLoopback" .jwks_uri)) }}
config.identity.issuers: {{ .jwks_uri }}: must be https:// (plain http:// is accepted on loopback only)
{{- end }}
{{- end }}
{{- range $config.approvals.webhooks }}
{{- if eq (empty .url) (empty .url_env) }}
config.approvals.webhooks: give either url or url_env
{{- end }}
{{- if and .url (not (regexMatch "^https?://." .url)) }}
config.approvals.webhooks: {{ .url }}: the URL of a webhook is http or https
{{- else if and (hasPrefix "http:" (default "" .url)) (not (include "ostiary.isLoopback" .url)) }}
config.approvals.webhooks: {{ .url }}: must be https:// (plain http:// is accepted on loopback only)
{{- end }}
{{- end }}
{{- $paths := dict }}
{{- range $name, $server := $config.servers }}
{{- $legacy := default "off" $server.legacy_servers }}
{{- $tls := default dict $server.tls }}
{{- if and (has "session_without_version" (default list $server.quirks)) (not $server.legacy_clients) }}
config.servers.{{ $name }}: quirks: session_without_version is one of legacy_clients, which is off
{{- end }}
{{- if and (dig "retries" "idempotent_tools" list $server) (eq (default "off" $server.pins) "off") }}
config.servers.{{ $name }}: retries.idempotent_tools: only an accepted definition can say so, and pins is off
{{- end }}
{{- if and (eq (toString (dig "health" "probe" "off" $server)) "discover") (ne $legacy "off") }}
config.servers.{{ $name }}: health.probe: no server of an earlier revision knows server/discover
{{- end }}
{{- if and (kindIs "map" $server.tls) (regexMatch "(^|,)http:" (join "," $server.replicas)) }}
config.servers.{{ $name }}: tls: is for https:// replicas
{{- end }}
{{- if ne (empty $tls.cert) (empty $tls.key) }}
config.servers.{{ $name }}.tls: cert and key go together
{{- end }}
{{- if and $server.forward_identity (gt (float64 (dig "load" "queue_s" 1.0 $server)) 30.0) }}
config.servers.{{ $name }}: load.queue_s: at most 30 with forward_identity, which is good for 60 s
{{- end }}
{{- if regexMatch "(?i)^(host|content-length|transfer-encoding|connection|content-type|accept|accept-encoding|te)$" (default "" (default dict $server.credentials).header) }}
config.servers.{{ $name }}.credentials.header: the credential's header is not one that can carry it
{{- end }}
{{- if and (regexMatch "^[A-Za-z0-9][A-Za-z0-9.-]*/[A-Za-z0-9._-]+@[^@/]+$" (default "" (default dict $server.registry).record)) (not (dig "registry" "url" "" $config)) }}
config.servers.{{ $name }}.registry.record: is one of a registry, and registry.url is not set
{{- end }}
{{- range $server.replicas }}
{{- if regexMatch "^(169[.]254[.]|0[.]0[.]0[.]0$|metadata([.]google[.]internal|[.]goog)?[.]?$|instance-data[.]?$)" (urlParse .).hostname }}
config.servers.{{ $name }}.replicas: {{ . }}: a metadata service, link-local or unspecified address is no destination
{{- end }}
{{- end }}
{{- range $server.issuers }}
{{- if not (has . $known) }}
config.servers.{{ $name }}.issuers: {{ . }} is not one of identity.issuers
{{- end }}
{{- end }}
{{- if hasKey $paths $server.path }}
config.servers.{{ $name }}.path: {{ $server.path }} is that of servers.{{ get $paths $server.path }} already
{{- end }}
{{- $_ := set $paths $server.path $name }}
{{- end }}
{{- range $config.approvals.issuers }}
{{- if not (has . $known) }}
config.approvals.issuers: {{ . }} is not one of identity.issuers
{{- end }}
{{- end }}
{{- with $config.sign_in }}
{{- $clients := list }}
{{- range prepend (default list .others) . }}
{{- if not (has .issuer (default $known $config.approvals.issuers)) }}
config.sign_in: {{ .issuer }} is not one of approvals.issuers
{{- end }}
{{- if has .issuer $clients }}
config.sign_in: others: an issuer is there twice
{{- end }}
{{- $clients = append $clients .issuer }}
{{- if not (has "openid" (default (list "openid") .scopes)) }}
config.sign_in: scopes: must hold openid, without which nobody is signed in
{{- end }}
{{- end }}
{{- end }}
{{- $limits := $config.limits }}
{{- if gt (int (default 0 $limits.concurrent_per_subject)) (int (default 1000 $limits.concurrent)) }}
config.limits: concurrent_per_subject: is above concurrent, and so would hold nobody back
{{- end }}
{{- end -}}

{{- define "ostiary.refuse.variables" -}}
{{- $config := .config -}}
{{- $values := .root.Values -}}
{{- $needed := splitList "\n" (include "ostiary.variables" (dict "at" "" "node" $config)) }}
{{- $checkpoints := default dict $config.audit.checkpoints }}
{{- if and (or $checkpoints.file $checkpoints.webhook) (not $checkpoints.key_env) }}
{{- $needed = append $needed "audit.checkpoints.key_env OSTIARY_CHECKPOINT_KEY" }}
{{- end }}
{{- range $needed }}
{{- if . }}
{{- $setting := index (splitList " " .) 0 }}
{{- $name := index (splitList " " .) 1 }}
{{- if not (hasKey $values.secretEnv $name) }}
config.{{ $setting }}: the environment variable {{ $name }} is not set: name its Secret in secretEnv.{{ $name }}
{{- end }}
{{- end }}
{{- end }}
{{- $audit := get $values.secretEnv $config.audit.hmac_key_env }}
{{- $seals := get $values.secretEnv $config.seals.keys_env }}
{{- if and $audit $seals }}
{{- if and (eq $audit.secret $seals.secret) (eq $audit.key $seals.key) }}
config.audit.hmac_key_env and seals.keys_env: the audit and the seals must not share a key
{{- end }}
{{- end }}
{{- range $name, $_ := mergeOverwrite dict (deepCopy $values.secretEnv) (deepCopy $values.env) (deepCopy $values.migrations.secretEnv) }}
{{- if and (hasPrefix "OSTIARY_" $name) (contains "__" $name) }}
{{ $name }}: settings stand in config, where the chart can judge them
{{- end }}
{{- end }}
{{- range splitList "\n" (include "ostiary.texts" (dict "at" "" "node" $config)) }}
{{- $setting := index (splitList " " .) 0 }}
{{- $tells := include "ostiary.tells" (trimPrefix (printf "%s " $setting) .) }}
{{- if regexMatch "^https?://" (trimPrefix (printf "%s " $setting) .) }}
{{- if $tells }}
config.{{ $setting }}: must carry neither user information, query nor fragment; a secret has no place in values
{{- end }}
{{- else if $tells }}
config.{{ $setting }}: a password has no place in values: {{ $setting }}_env, or PGPASSWORD in secretEnv
{{- end }}
{{- end }}
{{- range $name, $value := $values.env }}
{{- if or (hasKey $values.secretEnv $name) (regexMatch "(PASS(WORD|WD)?|SECRET|TOKEN|KEYS?)$" $name) (include "ostiary.tells" $value) }}
env.{{ $name }}: a secret comes from a Secret, by secretEnv
{{- end }}
{{- end }}
{{- end -}}

{{- define "ostiary.refuse.stores" -}}
{{- $config := .config -}}
{{- $values := .root.Values -}}
{{- $given := .root.Values.config -}}
{{- $kind := include "ostiary.databaseKind" .root }}
{{- $most := int (include "ostiary.mostReplicas" .root) }}
{{- if and (dig "approvals" "database" "" $given) $config.approvals.database_env }}
config.approvals: database and database_env are two answers to one question
{{- end }}
{{- if and $config.audit.database $config.audit.database_env }}
config.audit: database and database_env are two answers to one question
{{- end }}
{{- if eq $kind "sqlite" }}
{{- if gt $most 1 }}
config.approvals.database: a SQLite file is shared by the workers of one host: {{ $most }} replicas need PostgreSQL
{{- end }}
{{- if not (hasPrefix "sqlite:////var/lib/ostiary/" $config.approvals.database) }}
config.approvals.database: {{ $config.approvals.database }} is not on the volume: sqlite:////var/lib/ostiary/tickets.db, or PostgreSQL
{{- end }}
{{- if not $config.approvals.migrate }}
config.approvals.migrate: nobody else would bring a file on the volume to the revision that is used
{{- end }}
{{- end }}
{{- if and (eq $config.budgets.store "memory") (or (gt $most 1) (gt (int $values.workers) 1)) }}
config.budgets.store: memory is one worker's: {{ $most }} replicas of {{ int $values.workers }} workers would each spend the whole budget; with several workers they need budgets.store: database
{{- end }}
{{- $audit := $config.audit }}
{{- if and (or $audit.database $audit.database_env) (or $audit.rotate_bytes $audit.rotate_s $audit.keep_s) }}
config.audit.rotate_bytes, rotate_s and keep_s are for files: a database rotates nothing
{{- end }}
{{- range $setting, $least := dict "rotate_bytes" 65536 "rotate_s" 60 }}
{{- if and (get $audit $setting) (lt (float64 (get $audit $setting)) (float64 $least)) }}
config.audit.{{ $setting }}: must be 0 (never) or at least {{ $least }}
{{- end }}
{{- end }}
{{- if and $audit.keep_s (or (not $audit.checkpoints) (not (or $audit.rotate_bytes $audit.rotate_s))) }}
config.audit.keep_s: only rotated files whose end a checkpoint holds go: set up both, or leave it
{{- end }}
{{- if hasKey $audit "checkpoints" }}
{{- $checkpoints := default dict $audit.checkpoints }}
{{- if and (not (kindIs "invalid" $audit.checkpoints)) (not (or $checkpoints.file $checkpoints.webhook)) }}
config.audit.checkpoints: name a file, a webhook, or both
{{- end }}
{{- if hasPrefix "/var/lib/ostiary/" (default "" $checkpoints.file) }}
config.audit.checkpoints.file: {{ $checkpoints.file }} is on the record's own volume, which is no second place
{{- end }}
{{- if and $checkpoints.file (gt $most 1) }}
config.audit.checkpoints.file: {{ $most }} replicas have no file in common: audit.checkpoints.webhook
{{- end }}
{{- end }}
{{- with $values.trialPostgresql }}
{{- if .enabled }}
{{- $url := printf "postgresql://ostiary@%s/ostiary" (include "ostiary.trial.name" $.root) }}
{{- if ne $config.approvals.database $url }}
config.approvals.database: the trial database is {{ $url }}
{{- end }}
{{- if not $config.approvals.migrate }}
config.approvals.migrate: the trial database is there only after the install: its gateway migrates it
{{- end }}
{{- if not .password }}
trialPostgresql.password: name the Secret that holds it
{{- else if ne (toJson .password) (toJson (get $values.secretEnv "PGPASSWORD")) }}
secretEnv.PGPASSWORD: the gateway needs the password that trialPostgresql.password names
{{- end }}
{{- end }}
{{- end }}
{{- if and $values.migrations.secretEnv $config.approvals.migrate }}
config.approvals.migrate: the owner's credentials are the migrations' alone: false
{{- end }}
{{- end -}}

{{- define "ostiary.refuse.policy" -}}
{{- $config := .config -}}
{{- $values := .root.Values -}}
{{- $policy := $config.policy }}
{{- $url := default "" $policy.url }}
{{- with $policy.shadow }}
{{- $next := default "" .url }}
{{- if eq (empty .path) (empty .url) }}
config.policy.shadow: either path or url says where the candidate is
{{- else if and (empty .url) (or .token_env (kindIs "map" .tls)) }}
config.policy.shadow: token_env and tls are for a candidate at a url
{{- end }}
{{- if and (hasPrefix "http:" $next) (not (include "ostiary.isLoopback" $next)) }}
config.policy.shadow.url: must be https:// (plain http:// is accepted on loopback only)
{{- end }}
{{- if not (has (urlParse $next).path (list "" "/")) }}
config.policy.shadow.url: must have no path: the decision's is always the same
{{- end }}
{{- end }}
{{- if not (has (urlParse $url).path (list "" "/")) }}
config.policy.url: must have no path: the decision's is always the same
{{- end }}
{{- $tls := default dict $policy.tls }}
{{- if ne (empty $tls.cert) (empty $tls.key) }}
config.policy.tls: cert and key go together
{{- end }}
{{- if eq $policy.engine "opa" }}
{{- if and (kindIs "map" $policy.tls) (not (hasPrefix "https:" $url)) }}
config.policy: tls: is for an https:// url
{{- end }}
{{- if and (hasPrefix "http:" $url) (not (include "ostiary.isLoopback" $url)) }}
config.policy.url: must be https:// (plain http:// is accepted on loopback only)
{{- end }}
{{- if and (hasPrefix "http:" $url) (include "ostiary.isLoopback" $url) (not $values.opa.sidecar) }}
config.policy.url: {{ $url }} is the pod itself, where no OPA runs: opa.sidecar
{{- end }}
{{- if and $values.opa.sidecar (ne (trimSuffix "/" $url) "http://127.0.0.1:8181") }}
config.policy.url: {{ $url }} is not the sidecar: http://127.0.0.1:8181
{{- end }}
{{- else if $values.opa.sidecar }}
opa.sidecar: nobody would ask it: config.policy.engine is {{ $policy.engine }}
{{- end }}
{{- if and (not (include "ostiary.makesBundle" .root)) (or $values.policy.rules (ne (toJson $values.policy.data) "{\"servers\":{}}")) }}
policy: nobody would read it: config.policy.path is not ./policy, and there is no OPA in the pod
{{- end }}
{{- range $name, $_ := $values.policy.data.servers }}
{{- if not (or (dig "registry" "servers" "" $config) (hasKey $config.servers $name)) }}
policy.data.servers.{{ $name }}: no such server is configured
{{- end }}
{{- end }}
{{- end -}}

{{- define "ostiary.refuse.places" -}}
{{- $config := .config -}}
{{- $values := .root.Values -}}
{{- $name := include "ostiary.fullname" .root }}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $name) }}
fullnameOverride: a Service can't be called {{ $name }}: small letters, digits and hyphens, a letter first
{{- end }}
{{- $host := (urlParse $config.public_url).hostname }}
{{- if and (or $values.ingress.enabled $values.httpRoute.enabled) (or (contains ":" $host) (regexMatch "^[0-9.]+$" $host)) }}
config.public_url: {{ $host }} is an address, and an Ingress or an HTTPRoute is for a name
{{- end }}
{{- if not (hasPrefix "/var/lib/ostiary/" $config.audit.file) }}
config.audit.file: {{ $config.audit.file }} is not below /var/lib/ostiary, the one place that the pod may write to
{{- end }}
{{- if and $config.policy.shadow (not (hasPrefix "/var/lib/ostiary/" (default "" (dig "shadow" "file" "" $config.policy)))) }}
config.policy.shadow.file: is not below /var/lib/ostiary, the one place that the pod may write to
{{- end }}
{{- $names := list }}
{{- $paths := list "/etc/ostiary/ostiary.yaml" "/etc/ostiary/policy" "/var/lib/ostiary" "/tmp" "/dev/shm" }}
{{- range $values.mounts }}
{{- if ne 1 (add (hasKey . "configMap" | ternary 1 0) (hasKey . "secret" | ternary 1 0) (hasKey . "claim" | ternary 1 0)) }}
mounts: {{ .name }}: one of configMap, secret and claim
{{- end }}
{{- if has .name $names }}
mounts: {{ .name }} is there twice
{{- end }}
{{- if or (has .path $paths) (eq .path "/etc/ostiary") }}
mounts: {{ .path }} is taken
{{- end }}
{{- $names = append $names .name }}
{{- $paths = append $paths .path }}
{{- end }}
{{- $mounted := list }}
{{- if include "ostiary.makesBundle" .root }}{{ $mounted = append $mounted "/etc/ostiary/policy" }}{{ end }}
{{- range $values.mounts }}{{ $mounted = append $mounted .path }}{{ end }}
{{- range splitList "\n" (include "ostiary.files" (dict "at" "" "node" $config)) }}
{{- if . }}
{{- $setting := index (splitList " " .) 0 }}
{{- $file := index (splitList " " .) 1 }}
{{- $there := dict "is" false }}
{{- range $mounted }}
{{- if or (eq $file .) (hasPrefix (printf "%s/" .) $file) }}{{ $_ := set $there "is" true }}{{ end }}
{{- end }}
{{- if not $there.is }}
config.{{ $setting }}: {{ $file }} is in none of mounts
{{- end }}
{{- end }}
{{- end }}
{{- if and $values.prometheusRule.enabled (not (.root.Files.Get "files/alerts.yaml")) }}
prometheusRule.enabled: this chart holds no files/alerts.yaml
{{- end }}
{{- if and $values.dashboard.enabled (not (.root.Files.Get "files/dashboard.json")) }}
dashboard.enabled: this chart holds no files/dashboard.json
{{- end }}
{{- if and $values.autoscaling.enabled (lt (int $values.autoscaling.maxReplicas) (int $values.autoscaling.minReplicas)) }}
autoscaling.maxReplicas: is below minReplicas
{{- end }}
{{- end -}}

{{- define "ostiary.refuse.network" -}}
{{- $config := .config -}}
{{- $network := .root.Values.networkPolicy }}
{{- $imported := dig "registry" "servers" "" $config }}
{{- range $name, $_ := $network.servers }}
{{- if not (or $imported (hasKey $config.servers $name)) }}
networkPolicy.servers.{{ $name }}: no such server is configured
{{- end }}
{{- end }}
{{- if $network.enabled }}
{{- $remote := list }}
{{- range $config.identity.issuers }}
{{- if not .jwks_file }}{{ $remote = append $remote .issuer }}{{ end }}
{{- end }}
{{- if and $remote (not $network.egress) }}
networkPolicy.egress: nothing leads to {{ join ", " $remote }}: no key would ever be loaded, and nothing be ready
{{- end }}
{{- range $name, $_ := $config.servers }}
{{- if not (or (hasKey $network.servers $name) (hasKey $network.egress $name)) }}
networkPolicy: nothing leads to config.servers.{{ $name }}: networkPolicy.servers.{{ $name }} for pods, networkPolicy.egress.{{ $name }} for what is elsewhere
{{- end }}
{{- end }}
{{- if and (eq (include "ostiary.databaseKind" .root) "postgresql") (not .root.Values.trialPostgresql.enabled) (not (hasKey $network.egress "database")) }}
networkPolicy.egress.database: nothing leads to the database
{{- end }}
{{- if and .root.Values.serviceMonitor.enabled (not $network.monitoring) }}
networkPolicy.monitoring: serviceMonitor.enabled, and Prometheus is let nowhere
{{- end }}
{{- end }}
{{- end -}}
