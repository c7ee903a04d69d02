{{/* What every pod of the chart has in common: nothing that it does not need. */}}

{{- define "ostiary.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false  # a Service called ostiary-admin would set OSTIARY_ADMIN_PORT
securityContext:
  runAsNonRoot: true
  runAsUser: {{ int .user }}
  runAsGroup: {{ int .user }}
  fsGroup: {{ int .user }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Where pods may run that are not the gateway: the same nodes, for the image is the same. */}}
{{- define "ostiary.nodes" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "ostiary.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  privileged: false
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "ostiary.secretVariables" -}}
{{- range $name, $from := . }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $from.secret | quote }}, key: {{ $from.key | quote }}}}
{{- end }}
{{- end -}}

{{- define "ostiary.plainVariables" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- define "ostiary.mountVolumes" -}}
{{- range . }}
- name: mount-{{ .name }}
  {{- if .configMap }}
  configMap: {name: {{ .configMap | quote }}}
  {{- else if .secret }}
  secret: {secretName: {{ .secret | quote }}, defaultMode: 0440}
  {{- else }}
  persistentVolumeClaim: {claimName: {{ .claim | quote }}}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "ostiary.mountPoints" -}}
{{- range . }}
- {name: mount-{{ .name }}, mountPath: {{ .path | quote }}, readOnly: {{ not .claim }}}
{{- end }}
{{- end -}}

{{/* The gateway's pod, the same in a Deployment and a StatefulSet. */}}
{{- define "ostiary.pod" -}}
{{- $values := .Values -}}
{{- $config := include "ostiary.settings" . | fromJson -}}
{{- $bundle := include "ostiary.makesBundle" . -}}
metadata:
  labels:
    {{- include "ostiary.labels" (dict "root" . "component" "gateway") | nindent 4 }}
    {{- with $values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    checksum/config: {{ include "ostiary.configText" . | sha256sum }}
    {{- if $values.opa.sidecar }}
    checksum/policy: {{ include "ostiary.bundleFiles" . | sha256sum }}
    {{- end }}
    {{- with $values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "ostiary.serviceAccount" . | quote }}
  {{- include "ostiary.podSecurity" (dict "user" $values.runAsUser) | nindent 2 }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- include "ostiary.nodes" . | nindent 2 }}
  {{- with $values.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.topologySpread }}
  topologySpreadConstraints:
    {{- range . }}
    - topologyKey: {{ .topologyKey | quote }}
      maxSkew: {{ int .maxSkew }}
      whenUnsatisfiable: {{ .whenUnsatisfiable }}
      labelSelector:
        matchLabels: {{ include "ostiary.selector" (dict "root" $ "component" "gateway") | nindent 10 }}
      matchLabelKeys: [{{ eq (include "ostiary.kind" $) "Deployment" | ternary "pod-template-hash" "controller-revision-hash" }}]
    {{- end }}
  {{- end }}
  terminationGracePeriodSeconds: {{ add (int $values.preStopSeconds) (ceil $config.limits.grace_s | int) 15 }}
  {{- if $values.opa.sidecar }}
  initContainers:
    - name: opa  # starts before the gateway and ends after it: calls that finish are still judged
      image: {{ include "ostiary.image" (dict "image" $values.opa.image "tag" "latest") | quote }}
      imagePullPolicy: {{ $values.opa.image.pullPolicy }}
      restartPolicy: Always
      args:
        - run
        - --server
        - --addr=127.0.0.1:8181
        - --diagnostic-addr=:8282
        - --disable-telemetry
        - --log-level=error
        - --bundle
        - /policy
      ports:
        - {name: opa-health, containerPort: 8282}
      startupProbe:
        httpGet: {path: "/health?bundles", port: opa-health}
        periodSeconds: 1
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /health, port: opa-health}
        periodSeconds: 10
      {{- include "ostiary.containerSecurity" . | nindent 6 }}
      resources: {{ toYaml $values.opa.resources | nindent 8 }}
      volumeMounts:
        {{- range $file, $_ := include "ostiary.bundleFiles" . | fromYaml }}
        - {name: policy, mountPath: /policy/{{ eq $file ".manifest" | ternary "" "mcp/authz/" }}{{ $file }}, subPath: {{ $file }}, readOnly: true}
        {{- end }}
  {{- end }}
  containers:
    - name: gateway
      image: {{ include "ostiary.image" (dict "image" $values.image "tag" .Chart.AppVersion) | quote }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args: [serve, --config, /etc/ostiary/ostiary.yaml, --workers, {{ int $values.workers | quote }}]
      {{- if or $values.secretEnv $values.env }}
      env:
        {{- include "ostiary.secretVariables" $values.secretEnv | nindent 8 }}
        {{- include "ostiary.plainVariables" $values.env | nindent 8 }}
      {{- end }}
      ports:
        - {name: mcp, containerPort: {{ int $config.listen.port }}}
        - {name: admin, containerPort: {{ int $config.admin.port }}}
      startupProbe:
        httpGet: {path: /livez, port: admin}
        periodSeconds: 1
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /livez, port: admin}
        periodSeconds: 10
        timeoutSeconds: 3
        failureThreshold: 3
      readinessProbe:
        httpGet: {path: /readyz, port: admin}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 2
      {{- if $values.preStopSeconds }}
      lifecycle:
        preStop: {sleep: {seconds: {{ int $values.preStopSeconds }}}}
      {{- end }}
      {{- include "ostiary.containerSecurity" . | nindent 6 }}
      resources: {{ toYaml $values.resources | nindent 8 }}
      volumeMounts:
        # By subPath: a replica keeps its configuration until it is replaced, whatever an upgrade writes meanwhile.
        - {name: config, mountPath: /etc/ostiary/ostiary.yaml, subPath: ostiary.yaml, readOnly: true}
        {{- if and $bundle (not $values.opa.sidecar) }}
        - {name: policy, mountPath: /etc/ostiary/policy, readOnly: true}
        {{- end }}
        - {name: state, mountPath: /var/lib/ostiary}
        - {name: tmp, mountPath: /tmp}
        - {name: memory, mountPath: /dev/shm}
        {{- include "ostiary.mountPoints" $values.mounts | nindent 8 }}
  volumes:
    - name: config
      configMap: {name: {{ include "ostiary.fullname" . }}-config}
    {{- if $bundle }}
    - name: policy
      configMap:
        name: {{ include "ostiary.fullname" . }}-policy
        {{- if not $values.opa.sidecar }}
        items:
          {{- range $file, $_ := include "ostiary.bundleFiles" . | fromYaml }}
          - {key: {{ $file }}, path: {{ eq $file ".manifest" | ternary "" "mcp/authz/" }}{{ $file }}}
          {{- end }}
        {{- end }}
    {{- end }}
    {{- if eq (include "ostiary.kind" .) "Deployment" }}
    - name: state
      emptyDir: {sizeLimit: 64Mi}
    {{- end }}
    - name: tmp
      emptyDir: {sizeLimit: 1Gi}
    - name: memory
      emptyDir: {medium: Memory, sizeLimit: 64Mi}
    {{- include "ostiary.mountVolumes" $values.mounts | nindent 4 }}
{{- end -}}
