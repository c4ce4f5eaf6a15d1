"""What AWS's errors mean, in plain words, whoever met them: boto3 or Terraform."""

from __future__ import annotations

import importlib.util
import re

from hvdctl.errors import HvdctlError, UsageError
from hvdctl.sites.cloud import NO_PROVIDER

_HINTS = (
    NO_PROVIDER,
    (
        "AuthFailure|InvalidClientTokenId|SignatureDoesNotMatch|UnrecognizedClientException|InvalidAccessKeyId",
        "AWS does not take these credentials: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `aws configure`",
    ),
    (
        "ExpiredToken|RequestExpired|TokenRefreshRequired|SSOTokenProvider",
        "the session has ended: `aws sso login`, or renew AWS_SESSION_TOKEN",
    ),
    (
        "[Nn]o valid credential sources|Unable to locate credentials",
        "there are no credentials: `aws configure`, AWS_ACCESS_KEY_ID, or --option profile=NAME",
    ),
    (
        "failed to get shared config profile|config profile .* could not be found",
        "there is no such profile: see `aws configure list-profiles`, then --option profile=NAME",
    ),
    (
        "retrieving caller identity.* StatusCode: 40[013]",
        "AWS does not take these credentials: check them with `aws sts get-caller-identity`",
    ),
    (
        "account ID not allowed",
        "the cluster stands in another AWS account: use the credentials that it was made with",
    ),
    (
        "UnauthorizedOperation|AccessDenied",
        "these credentials may not do that: ask for the rights to make and remove instances and networks in EC2",
    ),
    (
        "VcpuLimitExceeded|InstanceLimitExceeded|MaxSpotInstanceCountExceeded",
        "the account's limit for such instances is reached: use fewer --nodes or a smaller --option instance_type, or "
        "ask AWS for more (Service Quotas, Amazon EC2)",
    ),
    (
        "VpcLimitExceeded|InternetGatewayLimitExceeded",
        "the region has as many networks as the account may have, and a cluster needs one: remove one, choose another "
        "--option region, or ask AWS for more (Service Quotas, Amazon VPC)",
    ),
    (
        "VolumeLimitExceeded|MaxIOPSLimitExceeded",
        "the account's limit for disks is reached: use a smaller --option disk or fewer --nodes, or ask AWS for more "
        "(Service Quotas, Amazon EBS)",
    ),
    (
        "InsufficientInstanceCapacity|InsufficientHostCapacity|SpotMaxPriceTooLow|capacity-not-available",
        "AWS has no such instances free in this zone now: choose another --option zone or instance_type, or try later",
    ),
    (
        "InvalidInstanceType|for InstanceType|[Uu]nsupported.*instance type",
        "this zone has no such instance type: choose another --option instance_type or zone",
    ),
    (
        r"InvalidAMIID|query returned no results",
        "the machine image is not there: see --option image_name and --option image_owner",
    ),
    (
        "OptInRequired|PendingVerification|Blocked|not subscribed",
        "the account is not open for this yet: AWS's message says where to go",
    ),
    ("RequestLimitExceeded|Throttling", "AWS was asked too often: run the same command again"),
    (
        "no such host|Could not connect to the endpoint|connection refused",
        "AWS can't be reached: check the network, AWS_ENDPOINT_URL and --option region",
    ),
)


def explain(message: str) -> str:
    """What to do about an error of AWS's, or of Terraform on AWS; empty where nothing is known."""
    return next((hint for pattern, hint in _HINTS if re.search(rf"\b(?:{pattern})", message)), "")


def installed() -> bool:
    return importlib.util.find_spec("boto3") is not None


def _of_aws(error: Exception) -> bool:
    if not installed():
        return False
    from botocore.exceptions import BotoCoreError, ClientError

    return isinstance(error, BotoCoreError | ClientError)


def told(error: Exception) -> HvdctlError | None:
    """An error of AWS's as one of ours."""
    if not _of_aws(error):
        return None
    from botocore.exceptions import ClientError, NoCredentialsError, PartialCredentialsError, ProfileNotFound

    if isinstance(error, ClientError):
        said = error.response["Error"]
        text = f"AWS refused {error.operation_name}: {said.get('Message') or 'no reason given'} ({said['Code']})"
        return HvdctlError(text, hint=explain(f"{said['Code']} {said.get('Message', '')}"))
    kind = (
        UsageError if isinstance(error, NoCredentialsError | PartialCredentialsError | ProfileNotFound) else HvdctlError
    )
    return kind(f"AWS: {error}", hint=explain(str(error)))
