"""OpenEnv: environments behind a server that speaks its protocol."""

from envs.openenv.actions import project
from envs.openenv.env import NAME, OPTION_RULES, OpenEnvEnv, check_data
from envs.openenv.prompts import PROMPT_FIELDS, build_prompt
from envs.spec import EnvSpec

SPEC = EnvSpec(
    name=NAME,
    description="Act in an environment that an OpenEnv server serves.",
    make=OpenEnvEnv,
    build_prompt=build_prompt,
    project=project,
    option_rules=OPTION_RULES,
    check_data=check_data,
    prompt_fields=PROMPT_FIELDS,
)
