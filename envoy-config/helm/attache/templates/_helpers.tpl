{{/* A Service's name has no dots and begins with a letter; a release's may have them, and may begin with a digit. */}}
{{- define "attache.name" -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- $own := contains .Chart.Name $release | ternary $release (printf "%s-%s" $release .Chart.Name) -}}
{{- if regexMatch "^[0-9]" $own }}{{ $own = printf "%s-%s" .Chart.Name $own }}{{ end -}}
{{- $own | trunc 63 | trimAll "-" }}
{{- end }}

{{- define "attache.selector" -}}
app.kubernetes.io/name: attache
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "attache.labels" -}}
{{ include "attache.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "attache.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ $tag }}{{ end }}
{{- end }}

{{- define "attache.configMap" -}}
{{- if and .Values.config.existingConfigMap .Values.config.files }}
{{- fail "config.files and config.existingConfigMap exclude each other: say one" }}
{{- end }}
{{- if not (or .Values.config.existingConfigMap .Values.config.files) }}
{{- fail "nothing to serve: give your documents, `--set-file 'config.files.routes\\.yaml=FILE'`, or config.existingConfigMap" }}
{{- end }}
{{- .Values.config.existingConfigMap | default (include "attache.name" .) }}
{{- end }}

{{/*
Refuses a file with a Secret in it. Documents are read rather than searched, since YAML has many ways to write one; what Helm
cannot read may be one.
*/}}
{{- define "attache.withoutSecrets" -}}
{{- $name := .name }}
{{- $lines := regexReplaceAll "\r\n?" .text "\n" | trimPrefix "\ufeff" }}
{{- /* Where the line between two documents is missing, or is not alone, the second `kind` hides the first. */}}
{{- if regexMatch "(?m)^(?:---)?[\"']?kind[\"']?[ \\t]*:[ \\t]*[\"']?Secret[\"']?[ \\t]*(?:#|$)" $lines }}
{{- include "attache.withoutSecret" (dict "name" $name "object" (dict "kind" "Secret")) }}
{{- end }}
{{- range $text := regexSplit "(?m)^(?:---|\\.\\.\\.)(?:[ \t]|$)" $lines -1 }}
{{- /* Directives stand before the line that begins their document. */}}
{{- $document := regexMatch "^(?:(?:%|[ \\t]*#)[^\n]*\n|[ \\t]*\n)*$" (print $text "\n") | ternary dict (fromYaml $text) }}
{{- if hasKey $document "Error" }}
{{- fail (printf "config.files.%s has a document that is no YAML mapping, which may be a Secret: mend it (attache check says where)" $name) }}
{{- end }}
{{- include "attache.withoutSecret" (dict "name" $name "object" $document) }}
{{- end }}
{{- end }}

{{- define "attache.withoutSecret" -}}
{{- $name := .name }}
{{- if kindIs "map" .object }}
{{- if has (get .object "kind" | toString | lower | trim) (list "secret" "secretlist") }}
{{- fail (printf "config.files.%s has a Secret, which everybody who reads ConfigMaps would see: create it by itself and name it in `secrets`" $name) }}
{{- end }}
{{- $items := get .object "items" }}
{{- if kindIs "slice" $items }}
{{- range $items }}
{{- include "attache.withoutSecret" (dict "name" $name "object" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The Secrets to mount. A pod mounts those of its own namespace alone, so one Secret cannot be that of two namespaces. */}}
{{- define "attache.secrets" -}}
{{- $paths := dict }}
{{- $namespaces := dict }}
{{- $mounts := list }}
{{- range .Values.secrets }}
{{- $namespace := .namespace | default $.Release.Namespace }}
{{- $path := printf "%s/%s" $namespace .name }}
{{- $secret := .secretName | default .name }}
{{- if hasKey $paths $path }}
{{- fail (printf "secrets: %s is there twice" $path) }}
{{- end }}
{{- $other := get $namespaces $secret }}
{{- if and $other (ne $other $namespace) }}
{{- fail (printf "secrets: %s would be the same Secret for %s and for %s, so one would go upstream with the other's key: create one for each in %s and give it as `secretName`" $secret $other $namespace $.Release.Namespace) }}
{{- end }}
{{- $_ := set $paths $path true }}
{{- $_ := set $namespaces $secret $namespace }}
{{- $mounts = append $mounts (dict "path" $path "secret" $secret) }}
{{- end }}
{{- toJson $mounts }}
{{- end }}

{{/* Several replicas that share no ledger let everybody use every limit as often as there are replicas. */}}
{{- define "attache.ledger" -}}
{{- $shared := .Values.redis.url }}
{{- range .Values.extraArgs }}{{ if hasPrefix "--redis" . }}{{ $shared = . }}{{ end }}{{ end }}
{{- range .Values.extraEnv }}{{ if eq .name "ATTACHE_REDIS" }}{{ $shared = .name }}{{ end }}{{ end }}
{{- if and (gt (int .Values.replicas) 1) (not $shared) (not .Values.redis.separateLedgers) }}
{{- fail (printf "%d replicas and no redis.url: each would count for itself, and a limit would hold %d times over. Give redis.url, set replicas to 1, or set redis.separateLedgers to true if that is meant" (int .Values.replicas) (int .Values.replicas)) }}
{{- end }}
{{- end }}

{{/* redis.url, which stands in the pod's arguments for everybody who reads Deployments. */}}
{{- define "attache.redisUrl" -}}
{{- $url := .Values.redis.url }}
{{- $rest := regexReplaceAll "^[^:]*://" $url "" }}
{{- /* As the sidecar reads it: the user ends at the last @ before the path. A password with a / in it leaves its @ in the path. */}}
{{- $authority := regexFind "^[^/?]*" $rest }}
{{- $user := contains "@" $authority | ternary (regexReplaceAll "@[^@]*$" $authority "") "" }}
{{- $after := trimPrefix $authority $rest }}
{{- if or (regexMatch ":." $user) (contains "@" $after) (regexMatch "[?&](?:pass|sentinel_password)=." $after) }}
{{- fail "redis.url has a password, which everybody who reads Deployments would see: put it into a Secret, and name that in redis.passwordSecret" }}
{{- end }}
{{- if and (or .Values.redis.caSecret .Values.redis.tlsSecret) (not (regexMatch "^(?:rediss|valkeys)[:+]" $url)) }}
{{- fail "redis.caSecret and redis.tlsSecret are for TLS: write rediss:// in redis.url" }}
{{- end }}
{{- $url }}
{{- end }}

{{/* The ports that redis.url names, and those that are said besides. */}}
{{- define "attache.redisPorts" -}}
{{- $ports := list }}
{{- $authority := regexReplaceAll "^[^:]*://" .Values.redis.url "" | regexFind "^[^/?]*" | regexFind "[^@]*$" }}
{{- $usual := contains "+sentinel:" .Values.redis.url | ternary 26379 6379 }}
{{- range splitList "," $authority }}
{{- if . }}
{{- $ports = append $ports (regexFind ":[0-9]+$" . | trimPrefix ":" | default $usual | int) }}
{{- end }}
{{- end }}
{{- range .Values.redis.ports }}
{{- $ports = append $ports (int .) }}
{{- end }}
{{- $ports | uniq | toJson }}
{{- end }}
