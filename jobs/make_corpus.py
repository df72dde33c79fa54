"""Writes the Chinese lines of `cnm-bert`, always with the same bytes, and larger files of the same kind.

    python jobs/make_corpus.py                                # writes jobs/cnm-bert/synthetic.txt
    python jobs/make_corpus.py --check                        # writes nothing; exit code 1 when the file differs
    python jobs/make_corpus.py --lines 14800000 --out FILE    # as large as you like; lines repeat where N is large

Nobody wrote these lines. They are sentences that rules combine from word lists made for this purpose, and nobody has rights
in them. A masked character can be guessed from its neighbors. The names of things of a kind (fish, trees, birds, metals,
illnesses, food) share a radical, and each kind has its own verbs, places and measure words. So a model with the components
of a rare character knows more about it than a model without them. Standard library only.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

SHIPPED = Path(__file__).parent / "cnm-bert" / "synthetic.txt"
COUNT, SEED = 4000, 5

# kind -> (names, measure word, what it is like, what it does, where)
KINDS: dict[str, tuple[list[str], str, list[str], list[str], list[str]]] = {
    "fish": (
        ["鲤鱼", "鲫鱼", "鲢鱼", "鳟鱼", "鲈鱼", "鳗鱼", "鲑鱼", "鲟鱼", "鳕鱼", "鲳鱼", "鲇鱼", "鲶鱼"],
        "条",
        ["肥大", "新鲜", "灵活"],
        ["游来游去", "跃出水面", "沉到水底", "吃着水草"],
        ["河里", "湖里", "海里", "江里", "池塘里", "清澈的溪水里"],
    ),
    "tree": (
        ["松树", "柏树", "杨树", "柳树", "桃树", "梅树", "枫树", "槐树", "樟树", "橡树", "榆树", "桦树"],
        "棵",
        ["高大", "茂密", "枯黄"],
        ["长出嫩叶", "落下叶子", "开满了花", "随风摇晃"],
        ["山坡上", "院子里", "路边", "村口", "森林里", "公园里"],
    ),
    "bird": (
        ["鸽子", "鹤", "鸭子", "鹅", "鹰", "鹦鹉", "鸳鸯", "鸵鸟", "鹧鸪", "鸥", "鹭", "鹌鹑"],
        "只",
        ["雪白", "美丽", "机警"],
        ["展开翅膀", "飞向天空", "叫个不停", "梳理羽毛"],
        ["屋顶上", "树枝上", "天空中", "沙滩上", "草丛里"],
    ),
    "insect": (
        ["蚂蚁", "蜜蜂", "蝴蝶", "蜻蜓", "蚊子", "蝗虫", "蟋蟀", "螳螂", "蜘蛛", "蚯蚓", "蝉", "蛾子"],
        "只",
        ["小小", "忙碌", "轻盈"],
        ["爬来爬去", "停在叶子上", "躲进洞里", "寻找食物"],
        ["花丛中", "墙角", "泥土里", "草地上", "窗台上"],
    ),
    "metal": (
        ["铁", "铜", "银", "锡", "铅", "钢", "铝", "锌", "镍", "钛"],
        "块",
        ["沉重", "光亮", "坚硬"],
        ["慢慢熔化", "闪着光", "生了锈", "被敲打成形"],
        ["炉子里", "工厂里", "仓库里", "铁匠的手里"],
    ),
    "illness": (
        ["疟疾", "痢疾", "痛风", "疥疮", "麻疹", "瘟疫", "癣", "疱疹"],
        "场",
        ["可怕", "漫长", "突然"],
        ["让他卧床不起", "使人发热", "慢慢好转", "传遍全城"],
        ["那年冬天", "去年夏天", "旅途中", "战争之后"],
    ),
    "food": (
        ["饺子", "馒头", "馄饨", "馅饼", "米饭", "饼干", "粥", "糕点", "糖果", "粽子"],
        "份",
        ["热气腾腾", "香甜", "可口"],
        ["端上桌来", "被吃得精光", "冒着热气", "散发着香味"],
        ["饭馆里", "厨房里", "餐桌上", "奶奶家里", "早市上"],
    ),
}
SLOTS: dict[str, list[str]] = {
    "who": ["我", "妈妈", "爸爸", "姐姐", "弟弟", "爷爷", "老师", "邻居", "渔夫", "医生", "工人", "同学们"],
    "when": ["昨天", "今天早上", "傍晚", "每年春天", "下雨以后", "周末", "很久以前", "放学的时候"],
    "number": ["一", "两", "三", "四", "五", "六", "十"],
    "see": ["看见", "发现", "遇到", "谈起", "想起", "画了"],
    "feel": ["很高兴", "很惊讶", "有些担心", "笑了起来", "没有说话", "拍手叫好"],
    "year": ["一九八七", "一九九五", "二零零八", "二零一六"],
}
LINES = [
    "{when}{who}在{place}{see}了{number}{measure}{name}。",
    "{place}有{number}{measure}{like}的{name}，{name}{does}。",
    "{who}说：“那{measure}{name}真{like}。”",
    "{who}{see}{name}{does}，{feel}。",
    "{like}的{name}{does}，{who}{feel}。",
    "{when}，{number}{measure}{name}在{place}{does}。",
    "{year}年，{who}第一次在{place}{see}了{name}。",
    "你知道{name}为什么{does}吗？{who}也不知道。",
    "{who}喜欢{name}，不喜欢{other}。",
    "{name}和{other}都在{place}。",
]


def lines(seed: int) -> Iterator[str]:
    """Yield sentences without end."""
    draw = random.Random(seed)
    kinds = list(KINDS.values())
    while True:
        names, measure, like, does, place = draw.choice(kinds)
        # The first names of a kind are frequent and the last ones are rare, like the words of a language.
        name, other = (names[int(len(names) * draw.random() ** 2)] for _ in range(2))
        words = {slot: draw.choice(choices) for slot, choices in SLOTS.items()}
        yield draw.choice(LINES).format(
            name=name,
            other=other,
            measure=measure,
            like=draw.choice(like),
            does=draw.choice(does),
            place=draw.choice(place),
            **words,
        )


def shipped() -> str:
    """Return the text of the file in the repository, whose lines all differ."""
    distinct: dict[str, None] = {}
    for line in lines(SEED):
        distinct[line] = None
        if len(distinct) == COUNT:
            break
    return "".join(f"{line}\n" for line in distinct)


def main() -> int:
    """Write or check the file, or write another one. Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file that is there")
    parser.add_argument("--lines", type=int, default=COUNT, help="how many, with --out")
    parser.add_argument("--out", type=Path, help="write another file, whose lines may repeat")
    parser.add_argument("--seed", type=int, default=SEED, help="with --out")
    arguments = parser.parse_args()
    if arguments.out:
        with arguments.out.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line, _ in zip(lines(arguments.seed), range(arguments.lines), strict=False))
        return 0
    data = shipped().encode()
    if SHIPPED.is_file() and SHIPPED.read_bytes() == data:
        return 0
    if arguments.check:
        print(f"{SHIPPED} is not what {Path(__file__).name} makes; run it without --check")
        return 1
    SHIPPED.parent.mkdir(exist_ok=True)
    SHIPPED.write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
